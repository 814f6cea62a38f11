# SPDX-License-Identifier: Apache-2.0
"""What a suite did, and how that is read from the output of stestr and unittest."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable

# stestr run:  {0} tests.unit.core.test_model.TestX.test_y [0.001234s] ... SKIPPED: no GPU
_STESTR = re.compile(
    r"^\{\d+\} (?P<test>.+?) \[[^]]*s\] \.\.\. (?P<status>ok|FAILED|SKIPPED)(?:: (?P<reason>.*))?$"
)
# unittest -v, whose test may stand on the line before:  ... skipped 'no GPU'
_UNITTEST_SKIP = re.compile(r"^(?P<test>.*?) ?\.\.\. skipped (?P<q>['\"])(?P<reason>.*)(?P=q)$")
_UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ")


@dataclasses.dataclass(frozen=True)
class Skip:
    """A test, or a whole suite, that was not run, and why."""

    test: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The tests of one suite; ``failures`` names those that failed."""

    passed: int = 0
    failures: tuple[str, ...] = ()
    skips: tuple[Skip, ...] = ()

    @property
    def failed(self) -> int:
        return len(self.failures)

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.passed + other.passed, self.failures + other.failures, self.skips + other.skips
        )

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {len(self.skips)} skipped"


Reader = Callable[[Iterable[str], int], Outcome]


def single(name: str, returncode: int) -> Outcome:
    """The outcome of a check that is one test: its exit status says it all."""
    return Outcome(failures=(name,)) if returncode else Outcome(passed=1)


def from_stestr(lines: Iterable[str], returncode: int) -> Outcome:
    """Count the lines of ``stestr run``.

    An exit status that no test accounts for (an import error, no test found) is a failure.
    """
    passed, failures, skips = 0, [], []
    for line in lines:
        if not (match := _STESTR.match(line)):
            continue
        if match["status"] == "ok":
            passed += 1
        elif match["status"] == "SKIPPED":
            skips.append(Skip(match["test"], match["reason"] or "no reason given"))
        else:
            failures.append(match["test"])
    if returncode and not failures:
        failures.append(f"stestr ended with {returncode}")
    return Outcome(passed, tuple(failures), tuple(skips))


def from_unittest(lines: Iterable[str], returncode: int) -> Outcome:
    """Read the closing lines of ``python -m unittest -v``.

    Nothing run and an exit status that no test accounts for are failures.
    """
    ran = 0
    failures: list[str] = []
    skips: list[Skip] = []
    previous = ""
    for line in lines:
        if match := _UNITTEST_SKIP.match(line):
            skips.append(Skip(match["test"] or previous, match["reason"]))
        elif match := _UNITTEST_RAN.match(line):
            ran = int(match[1])
        elif line.startswith(("FAIL: ", "ERROR: ")):
            failures.append(line.partition(": ")[2])
        previous = line
    if (returncode or not ran) and not failures:
        failures.append(f"unittest ended with {returncode} after {ran} tests")
    # An error in setUpClass fails without a test having run.
    return Outcome(max(0, ran - len(failures) - len(skips)), tuple(failures), tuple(skips))


def is_test_line(line: str) -> bool:
    """True for a line that reports one finished test."""
    return bool(_STESTR.match(line)) or " ... " in line


def is_failure_line(line: str) -> bool:
    """True for a line that reports one failed test."""
    match = _STESTR.match(line)
    if match:
        return match["status"] == "FAILED"
    return line.endswith(("... FAIL", "... ERROR"))
