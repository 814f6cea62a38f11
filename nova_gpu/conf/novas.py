# SPDX-License-Identifier: Apache-2.0
"""Nova's options, option parsers and exceptions for commands that do not import Nova.

Importing Nova takes longer than the rest of such a command.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from oslo_config import cfg, types

# nova.pci.request.PCI_REMOTE_MANAGED_TAG; a test compares them.
_REMOTE_MANAGED = "remote_managed"


class _Option(cfg.Opt):
    """A copy of an option of Nova's.

    It compares equal to every option. So oslo.config accepts that Nova registers its own option
    later, and keeps this one. A ConfigOpts of our own would not do for privsep's daemon, which
    parses ``cfg.CONF`` before it imports anything of ours.
    """

    def __ne__(self, other: object) -> bool:
        return False


class _Lines(_Option, cfg.MultiStrOpt):
    """A copy of an option of Nova's that may be set several times."""


def _options() -> dict[str, tuple[_Option, ...]]:
    """Return copies of those options of Nova's that a command reads, by group.

    A test compares them with Nova's.
    """
    text, names = types.String(), types.List()
    kinds = types.String(choices=("kvm", "lxc", "qemu", "parallels"))
    modes = types.String(choices=("host-model", "host-passthrough", "custom", "none"))
    return {
        "DEFAULT": (
            _Option("pybasedir", text, default=_folder()),
            _Option("state_path", text, default="$pybasedir"),
        ),
        "libvirt": (
            _Option("virt_type", kinds, default="kvm"),
            _Option("connection_uri", text, default=""),
            _Option("cpu_mode", modes),
            _Option("uid_maps", names, default=[]),
            _Option("gid_maps", names, default=[]),
        ),
        "pci": (
            _Lines(
                "device_spec",
                default=[],
                deprecated_opts=[
                    cfg.DeprecatedOpt("passthrough_whitelist", "pci"),
                    cfg.DeprecatedOpt("pci_passthrough_whitelist", "DEFAULT"),
                ],
            ),
        ),
        "devices": (
            _Option("enabled_mdev_types", names, default=[], deprecated_name="enabled_vgpu_types"),
        ),
    }


def _folder() -> str:
    """Return the folder that Nova's package is in, an empty string if Nova is not installed."""
    spec = importlib.util.find_spec("nova")
    places = spec.submodule_search_locations if spec else None
    return str(pathlib.Path(next(iter(places))).parent) if places else ""


def register(conf: cfg.ConfigOpts) -> None:
    """Register those options of Nova's in *conf* that a command reads, without importing Nova.

    ``nova.conf`` imports Castellan and the clients of five services, half a second of processor
    time at each call. If it is imported already, nothing is left to do.
    """
    if "nova.conf" in sys.modules:
        return
    for group, options in _options().items():
        conf.register_opts(options, None if group == "DEFAULT" else group)


def raised(name: str = "NovaException") -> tuple[type[Exception], ...]:
    """Return Nova's exception class *name* for an except clause, an empty tuple without Nova.

    Unless ``nova.exception`` is imported already, nothing can raise the exception.
    """
    module = sys.modules.get("nova.exception")
    return (getattr(module, name),) if module else ()


def whitelist(device_spec: Sequence[str]) -> Any:
    """Return Nova's Whitelist of the PCI devices in ``[pci]device_spec``.

    Its module needs one name each of two modules that would import most of Nova; both are replaced
    for the import. It then takes 0.3 s of processor time instead of 2.6 s (Nova 2026.2).

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
    parent, module = importlib.import_module(above), ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module
    setattr(parent, last, module)
    try:
        yield
    finally:
        del sys.modules[name]
        delattr(parent, last)
