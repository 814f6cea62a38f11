# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.coverage``: which lines and branches of nova_gpu the tests of a suite run.

``run SUITE`` runs it as tools/test does, with coverage in all its processes, and writes a file;
``show FILE`` prints the totals of such files, and ``compare BEFORE AFTER`` what the first reaches
and the second does not. Several files are taken together when they are joined by a comma.

It does not see what runs in a VM, in a process that is killed with SIGKILL, nor the scripts that
nova_gpu starts without site-packages (``python -I -S``).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import os
import resource
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import coverage

from tools.testing import session, suites
from tools.testing.environment import NEWEST, ROOT, Environment

PACKAGE = "nova_gpu"
# Where a process that Python starts reads what it is to measure; coverage's own word
START = "COVERAGE_PROCESS_START"

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


def main(arguments: Sequence[str]) -> int:
    """0, or 1 where a suite failed, or where *compare* finds what is reached no more."""
    options = _parse(arguments)
    if options.command == "run":
        target = Path(options.to or f"{options.suite}.json")
        failed, measured = _run(suites.BY_NAME[options.suite], options.pattern)
        target.write_text(json.dumps(_plain(measured)))
        print(totals(measured))
        return int(failed)
    if options.command == "show":
        for names in options.files:
            print(totals(_read(names)))
        return 0
    lines = compare(_read(options.before), _read(options.after))
    print("\n".join(lines) if lines else "nothing that was reached is reached no more")
    return int(bool(lines))


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


def _run(suite: suites.Suite, pattern: str | None) -> tuple[bool, Measured]:
    with tempfile.TemporaryDirectory(prefix="nova-gpu-coverage-") as folder:
        # Some tests run a process as another user.
        os.chmod(folder, 0o1777)
        settings = Path(folder, "coveragerc")
        settings.write_text(config(Path(folder, "data")))
        settings.chmod(0o644)
        os.environ[START] = str(settings)
        spent = _cpu_s()
        result = session.run(suite, Environment(NEWEST), pattern, threading.Event())
        spent = _cpu_s() - spent
        found = modules(settings)
    name = f"{suite.name} -k {pattern}" if pattern else suite.name
    measured = Measured(name, str(result.outcome), result.seconds, spent, found)
    return bool(result.outcome.failed), measured


def config(data: Path) -> str:
    """Coverage's settings for processes that write to files which begin with *data*"""
    return f"""[run]
branch = true
parallel = true
source = {ROOT / PACKAGE}
data_file = {data}
sigterm = true
patch = _exit, fork
disable_warnings =
    no-data-collected
    module-not-imported
    module-not-measured
"""


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def places_of(names: str) -> frozenset[Place]:
    """:param names: of files, joined by commas"""
    reached = _read(names).modules
    return frozenset(place for path in reached for place in places(path, reached[path]))


def places(path: str, module: Module) -> frozenset[Place]:
    """What was reached of one file"""
    lines = {(path, 0, line) for line in module.lines}
    return frozenset(lines | {(path, *branch) for branch in module.branches})


def modules(settings: Path) -> Mapping[str, Module]:
    measuring = coverage.Coverage(config_file=str(settings))
    measuring.combine()
    report = settings.with_name("report.json")
    measuring.json_report(outfile=str(report))
    found = {}
    for name, file in json.loads(report.read_text())["files"].items():
        path = ROOT / name
        lines, branches = file["executed_lines"], file["executed_branches"]
        found[str(path.relative_to(ROOT))] = _module(
            {
                "digest": hashlib.sha256(path.read_bytes()).hexdigest(),
                "lines": lines,
                "all_lines": lines + file["missing_lines"],
                "branches": branches,
                "all_branches": branches + file["missing_branches"],
            }
        )
    return found


def _module(plain: Mapping[str, Any]) -> Module:
    return Module(
        plain["digest"],
        frozenset(plain["lines"]),
        frozenset(plain["all_lines"]),
        frozenset((start, end) for start, end in plain["branches"]),
        frozenset((start, end) for start, end in plain["all_branches"]),
    )


def _plain(measured: Measured) -> Mapping[str, Any]:
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


def _read(names: str) -> Measured:
    """:param names: of files, joined by commas"""
    return functools.reduce(lambda one, other: one | other, map(_read_one, names.split(",")))


def _read_one(name: str) -> Measured:
    plain = json.loads(Path(name).read_text())
    read = {path: _module(module) for path, module in plain["modules"].items()}
    return Measured(plain["name"], plain["outcome"], plain["seconds"], plain["cpu_s"], read)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.coverage",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure one suite")
    names = [suite.name for suite in suites.SUITES if suite.lane != "vm"]
    run.add_argument("suite", choices=names)
    run.add_argument("-k", dest="pattern", help="run the tests whose name matches (stestr)")
    run.add_argument("--to", metavar="FILE", help="default: SUITE.json")
    show = commands.add_parser("show", help="print the totals")
    show.add_argument("files", nargs="+", metavar="FILE")
    comparing = commands.add_parser("compare", help="what is reached before and not after")
    comparing.add_argument("before", metavar="BEFORE")
    comparing.add_argument("after", metavar="AFTER")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
