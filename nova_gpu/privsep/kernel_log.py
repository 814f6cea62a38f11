# SPDX-License-Identifier: Apache-2.0
"""Privileged reading of the kernel's log; only lines about Xids leave the privileged process."""

from __future__ import annotations

import nova_gpu.privsep.entrypoint
from nova_gpu.conf import CONF
from nova_gpu.host.nvidia import kernel_log
from nova_gpu.host.roots import Roots

_TIMEOUT_S = 10.0


@nova_gpu.privsep.entrypoint.entrypoint
def xids(known: int) -> tuple[int, list[str]]:
    """Return the number of the newest record of the log, and the newer lines about Xids.

    :param known: the number of a record; only lines of later records are returned
    :raises KernelLogUnreadable: if the log cannot be read in time
    """
    return kernel_log.read(int(known), Roots.of(CONF.gpu), _TIMEOUT_S)
