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
    from nova_gpu.virt.delivery import binding, container_domain, domain_xml, guest_tree

__all__ = (
    "binding",
    "container_domain",
    "contents",
    "domain_xml",
    "guest_tree",
    "migrate_data",
    "threads",
)
# Of the modules that are in another package than this one
_PACKAGES = {
    "contents": "nova_gpu.host.container",
    "migrate_data": "nova.objects",
    "threads": "nova_gpu.virt",
}


def __getattr__(name: str) -> types.ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    package = _PACKAGES.get(name, __package__)
    module = globals()[name] = importlib.import_module(f"{package}.{name}")
    return module


def load() -> None:
    """Import all modules, as their files are another release's once the package is upgraded."""
    for name in __all__:
        __getattr__(name)
