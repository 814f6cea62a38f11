# SPDX-License-Identifier: Apache-2.0
"""The folders from which the host is read, such as /sys.

They are options, so that tests can use generated files.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

from nova_gpu.core import exception

# The target of /proc/PID/ns/pid for the host's own PID namespace, whose number is fixed
# (PROC_PID_INIT_INO in Linux' include/linux/proc_ns.h).
_HOSTS_PID_NAMESPACE = "pid:[4026531836]"


@dataclasses.dataclass(frozen=True, slots=True)
class Roots:
    """The folders that are read as the host's /sys, /dev and /proc, and those of CDI files."""

    sysfs: pathlib.Path = pathlib.Path("/sys")
    dev: pathlib.Path = pathlib.Path("/dev")
    proc: pathlib.Path = pathlib.Path("/proc")
    cdi_spec_dirs: tuple[pathlib.Path, ...] = (
        pathlib.Path("/etc/cdi"),
        pathlib.Path("/var/run/cdi"),
    )

    def boot_id(self) -> str:
        """Return the boot id (the kernel's Documentation/admin-guide/sysctl/kernel.rst)."""
        return (self.proc / "sys/kernel/random/boot_id").read_bytes().decode("ascii").strip()

    def shows_all_processes(self) -> bool:
        """Return whether ``proc`` lists all processes of the host, not only those of a container.

        ``ns/pid`` of process 1 or of this process tells it. An unprivileged process cannot read
        that of process 1. Neither file exists on a kernel without PID namespaces, where ``proc``
        lists all.
        """
        is_unread = False
        for process in ("1", "self"):
            try:
                return os.readlink(self.proc / process / "ns/pid") == _HOSTS_PID_NAMESPACE
            except FileNotFoundError:
                continue
            except OSError:
                is_unread = True
        return not is_unread

    @classmethod
    def of(cls, options: Any) -> Roots:
        """Return the folders that *options*, the option group ``[gpu]``, name.

        :raises InvalidOption: if one of them is not a path
        """
        for option in ("sysfs_root", "dev_root", "proc_root", "cdi_spec_dirs"):
            value = getattr(options, option)
            for path in (value,) if isinstance(value, str) else value:
                if "\0" in path:
                    raise exception.InvalidOption(
                        option, path, "it has a NUL character", "write the path of a folder"
                    )
        return cls(
            sysfs=pathlib.Path(options.sysfs_root),
            dev=pathlib.Path(options.dev_root),
            proc=pathlib.Path(options.proc_root),
            cdi_spec_dirs=tuple(pathlib.Path(folder) for folder in options.cdi_spec_dirs),
        )
