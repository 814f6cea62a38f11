# SPDX-License-Identifier: Apache-2.0
"""Results of suites and of parts of a tier: read from output, run with their cost, and printed.

This module runs before anything is installed, so it needs the standard library only.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# The exit status of a suite that this machine cannot run, after a line "SKIP: reason" (automake's
# convention), and those of timeout(1) for a command that it ended
SKIPPED, TIMED_OUT = 77, (124, 137)
ALL = "(all)"
# The lines of a failed test's output that are repeated at the end, and their characters
_LAST, _MOST = 8, 200


@dataclasses.dataclass
class Outcome:
    """The result of a suite, or of several.

    ``failed`` has the output of tests that failed, ``skipped`` the reasons of skipped ones, and
    ``unsteady`` the output of those that failed and then passed alone, all by the test's name.
    ``not_run``: the tests that a run of before had beyond those that ended now.
    """

    suite: str = ""
    passed: int = 0
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    unsteady: dict[str, str] = dataclasses.field(default_factory=dict)
    not_run: int = 0
    seconds: float = 0.0
    processor_s: float = 0.0

    def add(self, other: Outcome) -> None:
        """Add what another outcome counts, and its processor seconds."""
        self.passed += other.passed
        self.failed |= other.failed
        self.skipped |= other.skipped
        self.unsteady |= other.unsteady
        self.not_run += other.not_run
        self.processor_s += other.processor_s

    @property
    def tests(self) -> int:
        """The number of tests that ended."""
        return self.passed + len(self.failed) + len(self.skipped)

    def row(self) -> Row:
        """Return the outcome's line of a table."""
        counts = self.passed, len(self.failed), len(self.skipped), len(self.unsteady), self.not_run
        return Row(self.suite, *counts, self.seconds, self.processor_s)

    def __str__(self) -> str:
        return self.row().closing()


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A line of the closing table: a suite or a part, and the numbers of its tests."""

    name: str
    passed: int
    failed: int
    skipped: int
    unsteady: int = 0
    not_run: int = 0
    seconds: float = 0.0
    processor_s: float = 0.0

    @property
    def tests(self) -> int:
        """The number of tests that ended."""
        return self.passed + self.failed + self.skipped

    def closing(self) -> str:
        """Return the line that has to be the last one of a run."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"

    def __str__(self) -> str:
        counts = (self.passed, self.failed, self.skipped, self.unsteady, self.not_run)
        columns = "".join(f"{count:9}" for count in counts)
        return f"{self.name:26}{columns}{self.seconds:9.0f}{self.processor_s:11.0f}"


_HEADS = ("passed", "failed", "skipped", "unsteady", "not run")
_HEAD = f"{'':26}{''.join(f'{head:>9}' for head in _HEADS)}{'seconds':>9}{'processor':>11}"
_ROW = re.compile(r"(\S+) +" + r"(\d+) +" * 6 + r"(\d+)$")
_CLOSING = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped$")


def table(rows: Iterable[Row]) -> str:
    """Return a table with a line for each row."""
    return "\n".join([_HEAD, *map(str, rows)])


def rows(output: str) -> list[Row]:
    """Return the rows of the last table in the output of a run that reached its closing line.

    There are none if it did not. tools/bare may write below that line.
    """
    lines = output.splitlines()
    while lines and not _CLOSING.match(lines[-1]):
        lines.pop()
    if _HEAD not in lines:
        return []
    last = len(lines) - lines[::-1].index(_HEAD)
    matches = itertools.takewhile(bool, map(_ROW.match, lines[last:]))
    return [Row(match[1], *map(int, match.groups()[1:])) for match in matches if match]


def total(parts: Sequence[Row], seconds: float) -> Row:
    """Return the sum of rows, whose own run took *seconds*."""
    names = [field.name for field in dataclasses.fields(Row)][1:]
    sums = {name: sum(getattr(row, name) for row in parts) for name in names}
    return Row(ALL, **{**sums, "seconds": seconds})


# {0} tests.unit.test_a.TestA.test_b [0.001s] ... ok
TEST_LINE = re.compile(r"\{\d+\} (.+?)(?: \[[^]]*s\])? \.\.\. (ok|FAILED|SKIPPED)(?:: (.*))?$")
# The end of a failed test's traceback: its log, the next test, or the closing lines
_END = re.compile(r"Captured (?!traceback)|\{\d+\} |=====|Ran \d")


def read(lines: Sequence[str], returncode: int, command: str) -> Outcome:
    """Return the result of *command*, parsed from the lines of its output.

    Without lines of stestr about tests, the command counts as one test.
    """
    done = Outcome()
    for number, line in enumerate(lines):
        if match := TEST_LINE.match(line):
            test, status, reason = match.groups()
            if status == "ok":
                done.passed += 1
            elif status == "SKIPPED":
                done.skipped[test] = reason or "no reason given"
            else:
                output = itertools.takewhile(lambda line: not _END.match(line), lines[number + 1 :])
                done.failed[test] = "\n".join(output)
        elif returncode == SKIPPED and line.startswith("SKIP: "):
            done.skipped[command] = line.removeprefix("SKIP: ")
    if returncode in TIMED_OUT:
        done.failed[f"{command} ended at its time limit; tests may not have run"] = ""
    elif returncode not in (0, SKIPPED) and not done.failed:
        done.failed[f"{command} ended with {returncode}"] = "\n".join(lines[-60:])
    elif not (done.passed or done.failed or done.skipped):
        done.passed = 1
    return done


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """The exit status of a command, and the processor seconds of it and its children."""

    returncode: int
    processor_s: float


def execute(argv: Sequence[str], log: Path, limit_s: float, **options: object) -> Ended:
    """Run a command, which ends with this process.

    The output goes to the file *log*, because a daemon that a test left would keep a pipe open.

    :param options: the folder and the variables, as :class:`subprocess.Popen` has them
    """
    bounds = ["setpriv", "--pdeathsig", "TERM", "timeout", "--kill-after=60", str(limit_s)]
    with log.open("wb") as output:
        child = subprocess.Popen(  # type: ignore[call-overload]
            [*bounds, *argv], stdin=subprocess.DEVNULL, stdout=output, stderr=output, **options
        )
        _, status, usage = os.wait4(child.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    child.returncode = code  # so that it is not waited for again
    return Ended(code if code >= 0 else 128 - code, usage.ru_utime + usage.ru_stime)


def closing_lines(outcome: Outcome) -> list[str]:
    """Return a line for each test that is skipped, unsteady or failed, and why it failed.

    CI keeps the end of its output only.
    """
    named: Mapping[str, str] = outcome.skipped
    lines = [f"SKIP {test}: {reason}" for test, reason in named.items()]
    lines += [f"UNSTEADY, passed when run again alone: {test}" for test in outcome.unsteady]
    for test, output in outcome.failed.items():
        last = [line.strip()[:_MOST] for line in output.splitlines() if line.strip()][-_LAST:]
        lines += [f"FAIL {test}", *(f"    {line}" for line in last)]
    return lines
