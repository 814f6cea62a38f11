# SPDX-License-Identifier: Apache-2.0
"""What a suite did, and how that is read from the output of stestr and unittest."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Sequence

# stestr run:  {0} tests.unit.core.test_model.TestX.test_y [0.001234s] ... ok
# A test that was skipped before it began has no seconds:  {0} tests.unit... ... SKIPPED: no GPU
_STESTR = re.compile(
    r"^\{\d+\} (?P<test>.+?)(?: \[[^]]*s\])? \.\.\. "
    r"(?P<status>ok|FAILED|SKIPPED)(?:: (?P<reason>.*))?$"
)
# unittest -v, whose test may stand on the line before:  ... skipped 'no GPU'
_UNITTEST_SKIP = re.compile(r"^(?P<test>.*?) ?\.\.\. skipped (?P<q>['\"])(?P<reason>.*)(?P=q)$")
_UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ")
_UNITTEST_FAILED = ("FAIL: ", "ERROR: ")
# What follows the traceback of a failed test: what it logged, the next test, the list of failures.
_STESTR_ENDS = re.compile(r"^Captured (?!traceback)|^\{\d+\} |^=====")
_UNITTEST_ENDS = re.compile(r"^=====|^Ran \d+ ")
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ *File "')
# Of the project's tests, not of those of a library
_TESTS_FRAME = re.compile(r'^ *File "(?!.*/site-packages/)(?:.*/)?(tests/[^"]+)", line (\d+)')
_LONGEST = 1200


@dataclasses.dataclass(frozen=True)
class Skip:
    """A test, or a whole suite, that was not run, and why."""

    test: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Failure:
    """A test that failed, or what else did, and what its traceback says at the end."""

    test: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.test}: {self.reason}" if self.reason else self.test


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The tests of one suite. *unsteady*: what those said that failed first and then passed."""

    passed: int = 0
    failures: tuple[Failure, ...] = ()
    skips: tuple[Skip, ...] = ()
    unsteady: tuple[Failure, ...] = ()

    @property
    def failed(self) -> int:
        return len(self.failures)

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.passed + other.passed,
            self.failures + other.failures,
            self.skips + other.skips,
            self.unsteady + other.unsteady,
        )

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {len(self.skips)} skipped"


Reader = Callable[[Iterable[str], int], Outcome]


def single(name: str, returncode: int) -> Outcome:
    """The outcome of a check that is one test: its exit status says it all."""
    return Outcome(failures=(Failure(name),)) if returncode else Outcome(passed=1)


def from_stestr(lines: Iterable[str], returncode: int) -> Outcome:
    """Count the lines of ``stestr run``.

    An exit status that no test accounts for (an import error, no test found) is a failure.
    """
    passed, failures, skips = 0, [], []
    lines = list(lines)
    for number, line in enumerate(lines):
        if not (match := _STESTR.match(line)):
            continue
        if match["status"] == "ok":
            passed += 1
        elif match["status"] == "SKIPPED":
            skips.append(Skip(match["test"], match["reason"] or "no reason given"))
        else:
            failures.append(Failure(match["test"], _reason(lines[number + 1 :], _STESTR_ENDS)))
    if returncode and not failures:
        failures.append(Failure(f"stestr ended with {returncode}"))
    return Outcome(passed, tuple(failures), tuple(skips))


def from_unittest(lines: Iterable[str], returncode: int) -> Outcome:
    """Read the closing lines of ``python -m unittest -v``.

    Nothing run and an exit status that no test accounts for are failures.
    """
    ran = 0
    failures: list[Failure] = []
    skips: list[Skip] = []
    previous = ""
    lines = list(lines)
    for number, line in enumerate(lines):
        if match := _UNITTEST_SKIP.match(line):
            skips.append(Skip(match["test"] or previous, match["reason"]))
        elif match := _UNITTEST_RAN.match(line):
            ran = int(match[1])
        elif line.startswith(_UNITTEST_FAILED):
            reason = _reason(lines[number + 1 :], _UNITTEST_ENDS)
            failures.append(Failure(line.partition(": ")[2], reason))
        previous = line
    if (returncode or not ran) and not failures:
        failures.append(Failure(f"unittest ended with {returncode} after {ran} tests"))
    # An error in setUpClass fails without a test having run.
    return Outcome(max(0, ran - len(failures) - len(skips)), tuple(failures), tuple(skips))


def _reason(lines: Iterable[str], ends: re.Pattern[str]) -> str:
    """What the last traceback before the line that *ends* the test's part says, and where in the
    project's tests that was; nothing where there is none."""
    own = list(itertools.takewhile(lambda line: not ends.match(line), lines))
    starts = [number for number, line in enumerate(own) if line.strip() == _TRACEBACK]
    return _said(own[starts[-1] :]) if starts else ""


def _said(traceback: Sequence[str]) -> str:
    # Of a test in a fork of its class's process the first line alone is indented.
    first = next(filter(_FRAME.match, traceback), "")
    indent = first.partition("  File")[0]
    place = ""
    for number, line in enumerate(traceback[1:], 1):
        if match := _TESTS_FRAME.match(line):
            place = f"{match[1]}:{match[2]}: "
        if _FRAME.match(line) or _FRAME.match(traceback[number - 1]) or not line.strip(" ^~"):
            continue  # a frame, its source, what is marked of that
        if line.startswith(indent) and not line[len(indent) :].startswith(" "):
            said = itertools.takewhile(str.strip, traceback[number:])
            return f"{place}{' '.join(map(str.strip, said))}"[:_LONGEST]
    return place


def is_test_line(line: str) -> bool:
    """True for a line that reports one finished test."""
    return bool(_STESTR.match(line)) or " ... " in line


def is_failure_line(line: str) -> bool:
    """True for a line that reports one failed test."""
    match = _STESTR.match(line)
    if match:
        return match["status"] == "FAILED"
    return line.endswith(("... FAIL", "... ERROR"))
