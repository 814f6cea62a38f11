# SPDX-License-Identifier: Apache-2.0
"""The options of Nova's that this package reads on a compute host."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types

from oslo_config import cfg

# The modules of nova.conf that have them.
_MODULES = ("paths", "libvirt", "pci", "devices")


def register(conf: cfg.ConfigOpts) -> None:
    """Registers them by Nova's own definitions, without importing all of ``nova.conf``.

    That imports Castellan and the clients of five services, half a second of processor time, which
    a command that reads a handful of options would spend at each call. So its modules are loaded
    below an empty package of that name. Where Nova is loaded they are registered already; where it
    is loaded later it finds its own definitions, and registers the rest beside them.
    """
    if "nova.conf" in sys.modules:
        return
    found = importlib.util.find_spec("nova.conf")
    assert found is not None and found.submodule_search_locations is not None
    package = types.ModuleType("nova.conf")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["nova.conf"] = package
    try:
        for name in _MODULES:
            importlib.import_module(f"nova.conf.{name}").register_opts(conf)
    finally:
        del sys.modules["nova.conf"]
