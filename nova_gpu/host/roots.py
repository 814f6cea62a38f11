# SPDX-License-Identifier: Apache-2.0
"""Where the host is read: options, never constants, so that a generated tree can stand in."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Roots:
    sysfs: pathlib.Path = pathlib.Path("/sys")
    dev: pathlib.Path = pathlib.Path("/dev")
    proc: pathlib.Path = pathlib.Path("/proc")
    cdi_spec_dirs: tuple[pathlib.Path, ...] = (
        pathlib.Path("/etc/cdi"),
        pathlib.Path("/var/run/cdi"),
    )

    @classmethod
    def of(cls, options: Any) -> Roots:
        """As the options say: the group ``[gpu]``, or what has the same attributes."""
        return cls(
            sysfs=pathlib.Path(options.sysfs_root),
            dev=pathlib.Path(options.dev_root),
            proc=pathlib.Path(options.proc_root),
            cdi_spec_dirs=tuple(pathlib.Path(each) for each in options.cdi_spec_dirs),
        )
