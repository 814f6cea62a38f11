# SPDX-License-Identifier: Apache-2.0
"""A call that lets the privileged process import all modules of this package that it may need."""

from __future__ import annotations

import nova_gpu.privsep
import nova_gpu.privsep.entrypoint


@nova_gpu.privsep.entrypoint.entrypoint
def load() -> None:
    nova_gpu.privsep.load()
