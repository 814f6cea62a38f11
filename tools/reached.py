# SPDX-License-Identifier: Apache-2.0
"""The lines and branches of nova_gpu that runs of tests reached, and their file."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

Branch = tuple[int, int]
# Of one file a branch, or a line, which is a branch from nowhere
Place = tuple[str, int, int]


@dataclasses.dataclass(frozen=True)
class Module:
    """What was run of one file, and what was there to run."""

    digest: str
    lines: frozenset[int]
    all_lines: frozenset[int]
    branches: frozenset[Branch]
    all_branches: frozenset[Branch]

    def __or__(self, other: Module) -> Module:
        """Reached by either run."""
        if self.digest != other.digest:
            raise Unlike("a file was changed between the runs that are to be taken together")
        lines, branches = self.lines | other.lines, self.branches | other.branches
        return dataclasses.replace(self, lines=lines, branches=branches)

    def reached(self, arcs: Collection[Branch]) -> Module:
        """The same file, of which a part of a run went these ways"""
        lines = self.all_lines & {line for arc in arcs for line in arc}
        return dataclasses.replace(self, lines=lines, branches=self.all_branches & set(arcs))


class Unlike(Exception):
    """Two measurements are not of the same code."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """One or more runs. ``modules`` by path below the repository; ``cpu_s`` with all children."""

    name: str
    outcome: str
    seconds: float
    cpu_s: float
    modules: Mapping[str, Module]

    def __or__(self, other: Measured) -> Measured:
        ours, theirs = self.modules, other.modules
        both = {path: ours[path] | theirs[path] for path in ours.keys() & theirs.keys()}
        return Measured(
            f"{self.name}+{other.name}",
            f"{self.outcome}; {other.outcome}",
            self.seconds + other.seconds,
            self.cpu_s + other.cpu_s,
            {**ours, **theirs, **both},
        )


def totals(measured: Measured) -> str:
    """One line for all modules."""
    each = measured.modules.values()
    lines = _share(sum(len(m.lines) for m in each), sum(len(m.all_lines) for m in each))
    branches = _share(sum(len(m.branches) for m in each), sum(len(m.all_branches) for m in each))
    return (
        f"{measured.name}: {lines} lines, {branches} branches; "
        f"{measured.seconds:.0f} s, {measured.cpu_s:.0f} s of CPU; {measured.outcome}"
    )


def compare(before: Measured, after: Measured) -> list[str]:
    """Lines for what *before* reaches and *after* does not. Where a file was changed meanwhile, its
    lines have other numbers, so only how many there are is compared."""
    found = []
    nothing = Module("", frozenset(), frozenset(), frozenset(), frozenset())
    for path, old in sorted(before.modules.items()):
        new = after.modules.get(path, nothing)
        if old.digest == new.digest:
            if lost := old.lines - new.lines:
                found.append(f"{path}: lines {_ranges(lost)}")
            if gone := old.branches - new.branches:
                shown = " ".join(f"{start}->{end}" for start, end in sorted(gone))
                found.append(f"{path}: branches {shown}")
        elif len(new.lines) < len(old.lines) or len(new.branches) < len(old.branches):
            found.append(
                f"{path}, which was changed: {len(old.lines)} lines and {len(old.branches)} "
                f"branches before, {len(new.lines)} and {len(new.branches)} after"
            )
    return found


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / max(whole, 1):.1%})"


def _ranges(numbers: Collection[int]) -> str:
    return " ".join(map(str, sorted(numbers)))


def places_of(names: str) -> frozenset[Place]:
    """:param names: of files, joined by commas"""
    reached = read(names).modules
    return frozenset(place for path in reached for place in places(path, reached[path]))


def places(path: str, module: Module) -> frozenset[Place]:
    """What was reached of one file"""
    lines = {(path, 0, line) for line in module.lines}
    return frozenset(lines | {(path, *branch) for branch in module.branches})


def module(described: Mapping[str, Any]) -> Module:
    return Module(
        described["digest"],
        frozenset(described["lines"]),
        frozenset(described["all_lines"]),
        frozenset((start, end) for start, end in described["branches"]),
        frozenset((start, end) for start, end in described["all_branches"]),
    )


def plain(measured: Measured) -> Mapping[str, Any]:
    described = {
        path: {
            "digest": module.digest,
            **{
                name: sorted(getattr(module, name))
                for name in ("lines", "all_lines", "branches", "all_branches")
            },
        }
        for path, module in measured.modules.items()
    }
    return {
        **{name: getattr(measured, name) for name in ("name", "outcome", "seconds", "cpu_s")},
        "modules": described,
    }


def read(names: str) -> Measured:
    """:param names: of files, joined by commas"""
    return functools.reduce(lambda one, other: one | other, map(_read_one, names.split(",")))


def _read_one(name: str) -> Measured:
    plain = json.loads(Path(name).read_text())
    read = {path: module(each) for path, each in plain["modules"].items()}
    return Measured(plain["name"], plain["outcome"], plain["seconds"], plain["cpu_s"], read)
