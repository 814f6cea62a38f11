# SPDX-License-Identifier: Apache-2.0
"""What suites and parts took the last time on a machine, or where the table here was measured.

This module runs before anything is installed, so it needs the standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.outcomes import Row

# Of a machine with two cores, for machines on which nothing has run yet
_MEASURED = Path(__file__).with_name("figures.json")
# A part has grown if it takes so many times its processor seconds, and so many more: the rest is
# the noise of two runs.
_GROWN, _GROWN_S = 1.1, 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """The wall and processor seconds, and the number of tests, of one suite or part."""

    seconds: float
    processor_s: float
    tests: int


Figures = Mapping[str, Figure]


def measured() -> Figures:
    """Return the figures that the repository has."""
    return _read(json.loads(_MEASURED.read_text()))


def kept(file: Path) -> Figures:
    """Return the figures that *file* has of this machine; none if there is no such file."""
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        return _read(json.loads(file.read_text())[_machine()])
    return {}


def keep(file: Path, rows: Iterable[Row]) -> None:
    """Write the figures of *rows* to *file*, where those of other rows and machines stay.

    Rows with failed tests or tests that did not run are left out.
    """
    machines: dict[str, dict[str, object]] = {}
    with contextlib.suppress(FileNotFoundError, ValueError):
        machines = json.loads(file.read_text())
    complete = [row for row in rows if row.tests and not (row.failed or row.not_run)]
    machines.setdefault(_machine(), {}).update(
        {row.name: [round(row.seconds), round(row.processor_s), row.tests] for row in complete}
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    new.write_text(json.dumps(machines, indent=1, sort_keys=True) + "\n")
    new.rename(file)


def grown(former: Figures, rows: Iterable[Row]) -> list[str]:
    """Return a line for each row that takes a tenth more processor time than it took."""
    lines = []
    for row in rows:
        figure = former.get(row.name)
        if figure and row.processor_s > max(
            _GROWN * figure.processor_s, figure.processor_s + _GROWN_S
        ):
            lines.append(
                f"GREW {row.name}: {row.processor_s:.0f} processor seconds, "
                f"{figure.processor_s:.0f} in the run before"
            )
    return lines


def _read(figures: Mapping[str, tuple[float, float, int]]) -> Figures:
    return {name: Figure(*figure) for name, figure in figures.items()}


def _machine() -> str:
    """Return what tells machines of different speed apart: the processors and their number."""
    with contextlib.suppress(OSError):
        if match := re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text()):
            return f"{os.cpu_count()} x {match[1]}"
    return f"{os.cpu_count()} x {platform.machine()}"
