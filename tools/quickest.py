# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.quickest``: the functional tests that reach most of nova_gpu per second.

It runs them with coverage by test, and prints for tests/quick.txt, best first, each test with its
seconds and how many branches and lines it reaches that neither the unit tests (``--beyond``, a
file of tools.coverage) nor those before it do.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import unittest
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import coverage

from tools import coverage as measured
from tools import measuring, reached
from tools.testing import process, suites
from tools.testing.environment import NEWEST, ROOT, STATE, Environment

_LINE = re.compile(r"^\{\d+\} (\S+) \[([0-9.]+)s\] \.\.\. ok$")


class ByTest(coverage.CoveragePlugin):
    """What is run from a test's set-up to its clean-up is its own, in whatever thread."""

    def dynamic_context(self, frame: Any) -> str | None:
        if frame.f_code.co_name != "run":
            return None
        test = frame.f_locals.get("self")
        return test.id() if isinstance(test, unittest.TestCase) else None


def coverage_init(reg: Any, options: Any) -> None:
    """Coverage's name for what it calls in each process"""
    reg.add_dynamic_context(ByTest())


def chosen(
    places: Mapping[str, frozenset[reached.Place]],
    seconds: Mapping[str, float],
    known: Iterable[reached.Place],
    limit_s: float,
) -> list[tuple[str, float, int]]:
    """Tests with their seconds and what each adds: of those that still fit, always the one that
    adds most per second."""
    reached, left, found = set(known), dict(seconds), []
    while left:
        # By name where two are alike, so that the choice is the same each time.
        gains = {test: len(places[test] - reached) for test in left}
        best = max(sorted(left), key=lambda test: gains[test] / left[test])
        if not gains[best]:
            break
        if left[best] <= limit_s:
            found.append((best, left[best], gains[best]))
            limit_s -= left[best]
            reached |= places[best]
        del left[best]
    return found


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    (check,) = suites.checks(suites.BY_NAME["functional"], Environment(NEWEST), options.pattern)
    with tempfile.TemporaryDirectory(prefix="nova-gpu-quickest-") as folder:
        config = Path(folder, "coveragerc")
        text = measured.config(Path(folder, "data"))
        config.write_text(text.replace("[run]", "[run]\nplugins = tools.quickest"))
        finished = process.run(
            check.argv,
            log=STATE / "log" / "quickest.log",
            environ={**Environment(NEWEST).variables(), measuring.START: str(config)},
            limit_s=4 * 3600.0,
        )
        places = _places(config)
    matches = map(_LINE.match, finished.lines)
    seconds = {match[1]: float(match[2]) for match in matches if match and match[1] in places}
    known = reached.places_of(options.beyond) if options.beyond else frozenset()
    for test, took, gain in chosen(places, seconds, known, options.seconds):
        print(f"{test}  # {took:.1f} s, {gain} more")
    return finished.returncode


def _places(config: Path) -> Mapping[str, frozenset[reached.Place]]:
    """By test"""
    modules = measured.modules(config)
    combined = coverage.Coverage(config_file=str(config))
    combined.load()
    data = combined.get_data()
    paths = {str(Path(path).relative_to(ROOT)): path for path in data.measured_files()}
    found = {}
    for test in data.measured_contexts():
        data.set_query_contexts([f"^{re.escape(test)}$"])
        found[test] = frozenset(
            place
            for name, path in paths.items()
            for place in reached.places(name, modules[name].reached(data.arcs(path) or ()))
        )
    return found


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.quickest", description=__doc__)
    parser.add_argument("-k", dest="pattern", help="only tests whose name matches (stestr)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long they may take (default: %(default)s)"
    )
    parser.add_argument("--beyond", metavar="FILE", help="leave out what this run reaches")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
