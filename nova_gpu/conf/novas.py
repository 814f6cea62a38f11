# SPDX-License-Identifier: Apache-2.0
"""Nova's options, option parsers and exceptions for commands that do not load Nova."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from oslo_config import cfg

# The modules of nova.conf that define the options.
_MODULES = ("paths", "libvirt", "pci", "devices")
# nova.pci.request.PCI_REMOTE_MANAGED_TAG; a test compares them.
_REMOTE_MANAGED = "remote_managed"


def register(conf: cfg.ConfigOpts) -> None:
    """Register Nova's own option definitions in *conf* without importing all of ``nova.conf``.

    Importing that loads Castellan and the clients of five services, which takes half a second of
    processor time at each call of a command that reads a few options. So its modules are loaded
    below an empty package of that name. If Nova is loaded already, its options are registered
    already; if it is loaded later, it finds its own definitions and registers the others as well.
    """
    if "nova.conf" in sys.modules:
        return
    spec = importlib.util.find_spec("nova.conf")
    assert spec is not None and spec.submodule_search_locations is not None
    with _standing_in("nova.conf", __path__=list(spec.submodule_search_locations)):
        for name in _MODULES:
            importlib.import_module(f"nova.conf.{name}").register_opts(conf)


def raised(name: str = "NovaException") -> tuple[type[Exception], ...]:
    """Return Nova's exception *name* for an except clause, an empty tuple if Nova is not loaded.

    If Nova is not loaded, nothing raises it, and importing it would take longer than the rest of
    the command.
    """
    module = sys.modules.get("nova.exception")
    return (getattr(module, name),) if module else ()


def whitelist(device_spec: Sequence[str]) -> Any:
    """Return Nova's parser of ``[pci]device_spec``, without importing most of Nova.

    The parser needs one name of each of two modules that would import most of Nova; both are
    replaced.

    :raises nova.exception.NovaException: if *device_spec* is invalid
    """
    with (
        _standing_in("nova.conf", CONF=cfg.CONF),
        _standing_in("nova.pci.request", PCI_REMOTE_MANAGED_TAG=_REMOTE_MANAGED),
    ):
        return importlib.import_module("nova.pci.whitelist").Whitelist(device_spec)


@contextlib.contextmanager
def _standing_in(name: str, **attributes: Any) -> Iterator[None]:
    """Replace the module *name* by an object with *attributes*, unless it is loaded."""
    if name in sys.modules:
        yield
        return
    above, _, last = name.rpartition(".")
    parent, module = importlib.import_module(above), types.ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module
    setattr(parent, last, module)
    try:
        yield
    finally:
        del sys.modules[name]
        delattr(parent, last)
