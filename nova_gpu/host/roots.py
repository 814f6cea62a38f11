# SPDX-License-Identifier: Apache-2.0
"""Where the host is read: options, never constants, so that a generated tree can stand in."""

from __future__ import annotations

import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True, slots=True)
class Roots:
    sysfs: pathlib.Path = pathlib.Path("/sys")
    dev: pathlib.Path = pathlib.Path("/dev")
    proc: pathlib.Path = pathlib.Path("/proc")
    cdi_spec_dirs: tuple[pathlib.Path, ...] = (
        pathlib.Path("/etc/cdi"),
        pathlib.Path("/var/run/cdi"),
    )
