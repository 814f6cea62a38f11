# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.faults``: looks whether the tests find faults that this repository once had.

Each fault of faults.yaml is put back into a copy of the tree, two at a time, and the tests that are
known to find it run there: one of them has to fail. Without a fault all of them have to pass, which
is looked at first. It prints stestr's lines; each fault is a test. An entry that no longer fits the
code or the tests fails by its name.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent import futures

from tests.faults import fault
from tests.faults.fault import Fault
from tools import copies

AT_ONCE = 2
_ALL = ("tests/unit", "tests/functional")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-k", dest="patterns", action="append", default=[], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the faults, and run nothing")
    parser.add_argument(
        "--all-tests", action="store_true", help="run all unit and functional tests on each fault"
    )
    parser.add_argument(
        "--faults-only", action="store_true", help="do not run the tests without a fault first"
    )
    options = parser.parse_args()
    faults = fault.named(fault.load(), options.patterns)
    if options.list:
        for entry in faults:
            print(f"{entry.name} ({entry.fix}, {entry.tier}): {' '.join(entry.user.split())}")
        return 0
    outcomes = [] if options.faults_only or options.all_tests else [_without(faults)]
    with futures.ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes += pool.map(lambda entry: _one(entry, is_all=options.all_tests), faults)
    passed, skipped = outcomes.count("ok"), outcomes.count("SKIPPED")
    print(f"{passed} passed, {len(outcomes) - passed - skipped} failed, {skipped} skipped")
    return 0 if passed + skipped == len(outcomes) else 1


def _without(faults: list[Fault]) -> str:
    """Run the tests of all *faults* on the code as it is: a test that fails anyway finds none."""
    began = time.monotonic()
    tests = sorted({test for entry in faults if entry.tier == "run" for test in entry.tests})
    with copies.of_tree(fault.ROOT, "none") as folder:
        half = [tests[::2], tests[1::2]]
        with futures.ThreadPoolExecutor(AT_ONCE) as pool:
            runs = pool.map(lambda part: copies.run_tests(folder, part, first=False), half)
            bad = [run for part, run in zip(half, runs, strict=True) if part and run.status != 0]
    failed = [name for run in bad for name in run.failed]
    reason = (
        f"they fail without a fault: {' '.join(failed) or bad[0].output[-2000:]}" if bad else ""
    )
    return _say("without_a_fault", began, reason)


def _one(entry: Fault, *, is_all: bool) -> str:
    """Put a fault into a copy and run its tests; return ``ok`` if one of them fails."""
    began = time.monotonic()
    try:
        with copies.of_tree(fault.ROOT, entry.name) as folder:
            module, text = entry.changed()
            entry.refuse_missing_tests()
            copies.replace(folder / module, text)
            if entry.tier != "run":
                return _say(entry.name, began, f"the {entry.tier} run finds it", "SKIPPED")
            tests = ("discover", "-t", ".", "-s") if is_all else entry.tests
            if is_all:
                runs = [copies.run_tests(folder, (*tests, where), first=True) for where in _ALL]
            else:
                runs = [copies.run_tests(folder, tests, first=True)]
    except fault.Outdated as error:
        return _say(entry.name, began, str(error))
    reason = "no test finds it"
    for run in runs:
        if run.status is None:
            reason = "its tests did not end within the bound"
        elif run.is_without_a_test:
            reason = f"a test's module cannot be imported:\n{run.output[-2000:]}"
        elif run.status != 0:
            print(f"   {entry.name}: found by {' '.join(run.failed) or '?'}", flush=True)
            return _say(entry.name, began, "" if run.failed else run.output[-2000:])
    return _say(entry.name, began, reason)


def _say(name: str, began: float, reason: str, bad: str = "FAILED") -> str:
    """Print a line as stestr does, and return its status."""
    status = bad if reason else "ok"
    line = f"{{0}} tests.faults.{name} [{time.monotonic() - began:.3f}s] ... {status}"
    with_reason = f"{line}: {reason}" if bad == "SKIPPED" and reason else line
    print(with_reason + (f"\n    {reason}" if status == "FAILED" else ""), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
