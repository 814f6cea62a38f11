# SPDX-License-Identifier: Apache-2.0
"""Modules that deliveries need only in nova-compute, imported when they are first used.

Nova's libvirt driver takes two seconds to import. The commands list devices, but give none to
guests, so they do not need it. The modules of :mod:`nova_gpu.privsep` are also imported on demand.
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nova.objects import migrate_data

    from nova_gpu.host.container import contents
    from nova_gpu.virt import threads
    from nova_gpu.virt.delivery import binding, container_domain, guest_config, guest_tree

__all__ = (
    "binding",
    "container_domain",
    "contents",
    "guest_config",
    "guest_tree",
    "migrate_data",
    "threads",
)
_PACKAGES = {
    "binding": "nova_gpu.virt.delivery",
    "container_domain": "nova_gpu.virt.delivery",
    "contents": "nova_gpu.host.container",
    "guest_config": "nova_gpu.virt.delivery",
    "guest_tree": "nova_gpu.virt.delivery",
    "migrate_data": "nova.objects",
    "threads": "nova_gpu.virt",
}


def __getattr__(name: str) -> types.ModuleType:
    if name not in _PACKAGES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    module = globals()[name] = importlib.import_module(f"{_PACKAGES[name]}.{name}")
    return module
