# SPDX-License-Identifier: Apache-2.0
"""One suite run: its commands one after another, with progress on the terminal."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.testing import machine, outcome, process, report, suites
from tools.testing.environment import STATE, Environment
from tools.testing.outcome import Outcome, Skip

_HEARTBEAT_S = 15.0


@dataclasses.dataclass(frozen=True)
class Result:
    """A suite's outcome, its wall-clock time, and the processor time of its processes."""

    suite: suites.Suite
    outcome: Outcome
    seconds: float
    cpu_s: float = 0.0


def timed(work: Callable[[], None]) -> float:
    """Do ``work`` and return the seconds it took."""
    start = time.monotonic()
    work()
    return time.monotonic() - start


def run(
    suite: suites.Suite,
    environment: Environment,
    pattern: str | None,
    stop: threading.Event,
    *,
    tests: Sequence[str] | None = None,
    niceness: int = 0,
) -> Result:
    """Run one suite within its time limit.

    :param tests: run for the second time: these alone, or all where there are none
    :raises process.Stopped: when *stop* was set meanwhile
    """
    again = tests is not None
    report.heading(suite.name, "again, what failed" if again else suite.summary)
    start = time.monotonic()
    cpu_s = 0.0
    total = _prerequisites(suite)
    if total is None:
        total = Outcome()
        for check in suites.checks(suite, environment, pattern, tests or ()):
            left_s = suite.limit_s - (time.monotonic() - start)
            log = _log(suite, check, environment, again=again)
            did, spent_s = _run_check(
                suite, check, environment, log, max(left_s, 1.0), stop, niceness
            )
            total += did
            cpu_s += spent_s
    for failure in total.failures:
        report.say(f"FAILED {failure}")
    return Result(suite, total, time.monotonic() - start, cpu_s)


def _prerequisites(suite: suites.Suite) -> Outcome | None:
    """None when the suite can run, else the outcome that says why it was skipped."""
    if suite.lane != "libvirtd":
        return None
    if os.geteuid() != 0:
        return Outcome(skips=(Skip(suite.name, "needs root: it runs a libvirtd of its own"),))
    if suite.name == "guide":
        return None  # it installs what it needs itself
    try:
        if added := machine.install(machine.LXC, STATE / "log" / f"apt-{suite.name}.log"):
            report.say(f"installed {' '.join(added)}")
    except machine.MachineNotReady as error:
        return Outcome(skips=(Skip(suite.name, str(error)),))
    return None


def _log(suite: suites.Suite, check: suites.Check, env: Environment, *, again: bool) -> Path:
    words = (suite.name, *check.name.split(), env.release, *(("again",) if again else ()))
    return STATE / "log" / f"{'-'.join(words)}.log"


def _run_check(
    suite: suites.Suite,
    check: suites.Check,
    environment: Environment,
    log: Path,
    limit_s: float,
    stop: threading.Event,
    niceness: int,
) -> tuple[Outcome, float]:
    """What it did, and its processor time"""
    progress = _Progress(suite.echo)
    start = time.monotonic()
    finished = process.run(
        check.argv,
        log=log,
        environ=environment.variables(),
        limit_s=limit_s,
        on_line=progress.line,
        stop=stop,
        niceness=niceness,
    )
    seconds = time.monotonic() - start
    if finished.timed_out:
        report.say(f"{check.name}: over its limit of {suite.limit_s:.0f} s; see {log}")
    if check.reader is None:
        verdict = outcome.single(f"{suite.name}: {check.name}", finished.returncode)
    elif finished.returncode == suites.SKIPPED:
        verdict = Outcome(skips=(Skip(check.name, _skip_reason(finished.lines)),))
    else:
        verdict = check.reader(finished.lines, finished.returncode)
    if finished.timed_out and not verdict.failed:
        late = outcome.Failure(f"{suite.name}: {check.name} ran out of time")
        verdict += Outcome(failures=(late,))
    if verdict.failed:
        report.excerpt(finished.lines, log)
    report.say(f"{check.name}: {verdict} ({seconds:.1f} s)")
    return verdict, finished.cpu_s


def _skip_reason(lines: tuple[str, ...]) -> str:
    reasons = [line.removeprefix("SKIP: ") for line in lines if line.startswith("SKIP: ")]
    return reasons[-1] if reasons else "no reason given"


class _Progress:
    """Shows finished tests, or a count of them now and then."""

    def __init__(self, echo: bool) -> None:
        self._echo = echo
        self._done = 0
        self._shown = time.monotonic()

    def line(self, line: str) -> None:
        if not outcome.is_test_line(line):
            return
        self._done += 1
        now = time.monotonic()
        if self._echo or outcome.is_failure_line(line):
            report.say(line)
        elif now - self._shown > _HEARTBEAT_S:
            report.say(f"{self._done} tests done")
            self._shown = now
