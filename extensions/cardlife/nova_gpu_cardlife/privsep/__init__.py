# SPDX-License-Identifier: Apache-2.0
"""What nova-compute runs as root by oslo.privsep; imported on first use, as nova_gpu.privsep is."""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import nova_gpu_cardlife.privsep.steps
    import nova_gpu_cardlife.privsep.tests  # noqa: F401


def __getattr__(name: str) -> types.ModuleType:
    if name not in ("steps", "tests"):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return importlib.import_module(f"{__name__}.{name}")
