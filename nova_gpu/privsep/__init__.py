# SPDX-License-Identifier: Apache-2.0
"""Functions that nova-compute runs as root by oslo.privsep. They take addresses, uuids and numbers.

They raise InvalidPciAddress or InvalidValue for an address, slot or uuid that is none. The modules
are imported on first use, because importing oslo.privsep takes half a second.
"""

from __future__ import annotations

import importlib
import pkgutil
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import nova_gpu.privsep.cleaning
    import nova_gpu.privsep.loading
    import nova_gpu.privsep.nodes
    import nova_gpu.privsep.readings
    import nova_gpu.privsep.vfio
    import nova_gpu.privsep.vgpu  # noqa: F401

_MODULES = frozenset(module.name for module in pkgutil.iter_modules(__path__))


def __getattr__(name: str) -> types.ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return importlib.import_module(f"{__name__}.{name}")


def load() -> None:
    """Import all modules, as their files are another release's once the package is upgraded."""
    for name in sorted(_MODULES):
        importlib.import_module(f"{__name__}.{name}")
