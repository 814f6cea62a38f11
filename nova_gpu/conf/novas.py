# SPDX-License-Identifier: Apache-2.0
"""Nova's options and exceptions for commands that do not import Nova.

``nova.conf`` imports Castellan and the clients of five services, half a second of processor time at
each call, longer than the rest of such a command.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pathlib
import sys
from typing import Any

from oslo_config import cfg, types


def _options() -> dict[str, tuple[cfg.Opt, ...]]:
    """Return copies of those options of Nova's that a command reads, by group.

    A test compares them with Nova's.
    """
    text, names = types.String(), types.List()
    kinds = types.String(choices=("kvm", "lxc", "qemu", "parallels"))
    modes = types.String(choices=("host-model", "host-passthrough", "custom", "none"))
    return {
        "DEFAULT": (
            cfg.Opt("pybasedir", text, default=_folder()),
            cfg.Opt("state_path", text, default="$pybasedir"),
        ),
        "libvirt": (
            cfg.Opt("virt_type", kinds, default="kvm"),
            cfg.Opt("connection_uri", text, default=""),
            cfg.Opt("cpu_mode", modes),
            cfg.Opt("uid_maps", names, default=[]),
            cfg.Opt("gid_maps", names, default=[]),
        ),
        "pci": (
            cfg.MultiStrOpt(
                "device_spec",
                default=[],
                deprecated_opts=[
                    cfg.DeprecatedOpt("passthrough_whitelist", "pci"),
                    cfg.DeprecatedOpt("pci_passthrough_whitelist", "DEFAULT"),
                ],
            ),
        ),
        "devices": (
            cfg.Opt("enabled_mdev_types", names, default=[], deprecated_name="enabled_vgpu_types"),
        ),
    }


def _folder() -> str:
    """Return the folder that Nova's package is in, an empty string if Nova is not installed."""
    spec = importlib.util.find_spec("nova")
    places = spec.submodule_search_locations if spec else None
    return str(pathlib.Path(next(iter(places))).parent) if places else ""


class Options:
    """Nova's options: those of ``nova.conf`` once that is imported, before that the copies.

    Groups and options are attributes, as those of ``nova.conf.CONF``.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(self.conf(), name)

    def conf(self) -> cfg.ConfigOpts:
        """Return the options that apply now, when ``cfg.CONF`` has read the configuration files."""
        copies = _copies()
        if "nova.conf" not in sys.modules and copies._namespace is not cfg.CONF._namespace:
            copies.clear()  # of what was read before the files were
            # What was read, in its order: a file after a folder overrides it.
            copies._namespace = cfg.CONF._namespace
            if _folder() and _name_others(copies):
                importlib.import_module("nova.conf")
        return cfg.CONF if "nova.conf" in sys.modules else copies


@functools.cache
def _copies() -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    for group, options in _options().items():
        conf.register_opts(options, None if group == "DEFAULT" else group)
    return conf


def _name_others(copies: cfg.ConfigOpts) -> bool:
    """Return whether the value of a copy names an option without one, as ``$my_ip``."""
    for group, options in _options().items():
        for option in options:
            try:
                copies[option.name] if group == "DEFAULT" else copies[group][option.name]
            except cfg.NoSuchOptError:
                return True
            except (ValueError, cfg.Error):
                continue  # whoever reads it tells
    return False


def raised(name: str = "NovaException") -> tuple[type[Exception], ...]:
    """Return Nova's exception class *name* for an except clause, an empty tuple without Nova.

    Unless ``nova.exception`` is imported already, nothing can raise the exception.
    """
    module = sys.modules.get("nova.exception")
    return (getattr(module, name),) if module else ()
