# SPDX-License-Identifier: Apache-2.0
"""Parts of Nova that a command uses without loading Nova: options, their readers and exceptions."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from oslo_config import cfg

# The modules of nova.conf that have them.
_MODULES = ("paths", "libvirt", "pci", "devices")
# nova.pci.request.PCI_REMOTE_MANAGED_TAG; a test compares them.
_REMOTE_MANAGED = "remote_managed"


def register(conf: cfg.ConfigOpts) -> None:
    """Register them by Nova's own definitions, without importing all of ``nova.conf``.

    That imports Castellan and the clients of five services, half a second of processor time, which
    a command that reads a handful of options would spend at each call. So its modules are loaded
    below an empty package of that name. Where Nova is loaded they are registered already; where it
    is loaded later it finds its own definitions, and registers the rest as well.
    """
    if "nova.conf" in sys.modules:
        return
    spec = importlib.util.find_spec("nova.conf")
    assert spec is not None and spec.submodule_search_locations is not None
    with _standing_in("nova.conf", __path__=list(spec.submodule_search_locations)):
        for name in _MODULES:
            importlib.import_module(f"nova.conf.{name}").register_opts(conf)


def raised(name: str = "NovaException") -> tuple[type[Exception], ...]:
    """Return Nova's exception *name* for an except clause, nothing where Nova is not loaded.

    Then nothing raises it, and to import it costs a command more than all else that it does.
    """
    module = sys.modules.get("nova.exception")
    return (getattr(module, name),) if module else ()


def whitelist(device_spec: Sequence[str]) -> Any:
    """Return Nova's reader of ``[pci]device_spec``, without importing most of Nova.

    Of the two modules that would import that, the reader uses one name each.

    :raises nova.exception.NovaException: where it cannot read it
    """
    with (
        _standing_in("nova.conf", CONF=cfg.CONF),
        _standing_in("nova.pci.request", PCI_REMOTE_MANAGED_TAG=_REMOTE_MANAGED),
    ):
        return importlib.import_module("nova.pci.whitelist").Whitelist(device_spec)


@contextlib.contextmanager
def _standing_in(name: str, **attributes: Any) -> Iterator[None]:
    """Stand in for the module *name* with these *attributes* while it is not loaded."""
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
