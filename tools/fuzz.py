# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.fuzz --examples 1000000``: runs the property tests with many random inputs.

A property test (tests/unit, FuzzTestCase) checks a claim for all inputs that hypothesis generates.
The number of inputs is printed for each test, and the smallest failing input for one that fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests/unit"


def main(arguments: Sequence[str]) -> int:
    """Run the property tests.

    :returns: the exit status: 0 if all passed, 1 if one failed or there is none
    """
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument(
        "--examples",
        type=int,
        default=1_000_000,
        help="number of inputs of all tests together (default: %(default)s)",
    )
    parser.add_argument(
        "-k", dest="pattern", default="", help="run only the tests whose name contains this text"
    )
    options = parser.parse_args(arguments)
    started = time.monotonic()
    names = [name for name in _properties() if options.pattern in name]
    tally: dict[str, int] = {}
    failed = []
    left = options.examples
    for done, name in enumerate(names):
        # Inputs that a slow property did not get are given to the later ones.
        held, counts = _run(name, max(1, left // (len(names) - done)))
        if not held:
            failed.append(name)
        tally |= counts
        left = max(0, options.examples - sum(tally.values()))
        print(f"{name}: {sum(counts.values())} inputs, {'holds' if held else 'FAILED'}", flush=True)
    minutes = (time.monotonic() - started) / 60
    print(f"{sum(tally.values())} inputs in {minutes:.1f} min, {len(failed)} properties failed")
    return 1 if failed or not names else 0


def _properties() -> Iterator[str]:
    """Yield the names of the property tests, the slowest first.

    A slow one may stop before it has its share of inputs, which the later ones then get.
    """
    slow = {"test_preemption_commands": 0, "test_histories": 1, "test_sysfs": 2, "test_cdi": 3}
    files = (path for path in TESTS.rglob("test_*.py") if "(base.FuzzTestCase" in path.read_text())
    for path in sorted(files, key=lambda path: (slow.get(path.stem, 4), path.stem)):
        yield from _tests_of(".".join(path.relative_to(ROOT).with_suffix("").parts))


def _tests_of(module: str) -> Iterator[str]:
    from tests.unit.fuzz import base

    waiting: list[unittest.TestSuite] = [unittest.TestLoader().loadTestsFromName(module)]
    while waiting:
        for test in waiting.pop():
            if isinstance(test, unittest.TestSuite):
                waiting.append(test)
            elif isinstance(test, base.FuzzTestCase):
                yield test.id()


def _run(name: str, examples: int) -> tuple[bool, Mapping[str, int]]:
    with tempfile.NamedTemporaryFile("r") as tally:
        environment = {
            **os.environ,
            "NOVA_GPU_FUZZ_EXAMPLES": str(examples),
            "NOVA_GPU_FUZZ_TALLY": tally.name,
        }
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "unittest", name],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        pairs = [line.split() for line in Path(tally.name).read_text().splitlines()]
    if done.returncode:
        print(done.stdout + done.stderr)
    return done.returncode == 0, {pair[0]: int(pair[1]) for pair in pairs}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
