# SPDX-License-Identifier: Apache-2.0
"""Implementation of ``tools/test``: runs suites of tests side by side, and prints a table.

This module runs before anything is installed, so it needs the standard library only.
"""

from __future__ import annotations

import argparse
import configparser
import dataclasses
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path

from lab import packages
from tools import environments
from tools.environments import LOG, NEWEST, RELEASES, ROOT, STATE

# The exit status of a suite that this machine cannot run, after a line "SKIP: reason" (automake's
# convention), and those of timeout(1) for a command that it ended
SKIPPED, TIMED_OUT = 77, (124, 137)


@dataclasses.dataclass(frozen=True)
class Suite:
    """The commands that run a suite. A command whose output names no tests counts as one test.

    ``lane``: suites with the same one run one after another, because they use the same libvirtd or
    VM; empty for none. ``pick``: the option before the name of a test to run, empty for none,
    ``None`` if tests cannot be picked.
    """

    commands: tuple[str, ...]
    lane: str = ""
    pick: str | None = None


def _tox(environment: str) -> tuple[str, ...]:
    """Return the commands of an environment in tox.ini."""
    ini = configparser.ConfigParser(interpolation=None)
    ini.read(ROOT / "tox.ini")
    return tuple(ini[f"testenv:{environment}"]["commands"].strip().splitlines())


# Each suite and release has a repository, because two runs at once would lock each other. The tests
# of a class run in one process. Suites that wait for their guests come first.
_STESTR = (
    r"nice -n 5 stestr --test-path tests/{suite} --top-dir . --group_regex '([^\.]+\.)+' "
    "--repo-url .tools/stestr/{suite}-{release} run",
)
_GUIDE = ("sh -c 'test $(id -u) = 0 && exec tools/lab guide; echo SKIP: needs root; exit 77'",)
_VFIO = ("python -m tests.vfio --tests tests/{suite}",)
# The longest lanes first, so that none runs on alone. CONTRIBUTING.rst says what each suite is.
SUITES = {
    "lxc": Suite(("python -m tests.lxc",), "libvirtd", "-k"),
    "crash": Suite(("python -m tests.crash --points 50",), "libvirtd"),
    "guide": Suite(_GUIDE, "libvirtd"),
    "functional": Suite(_STESTR, pick=""),
    "vfio": Suite(("python -m tests.vfio",), "vm", "-k"),
    "moves": Suite(_VFIO, "vm", "-k"),
    "bars": Suite(_VFIO, "vm", "-k"),
    "takeover": Suite(_VFIO, "vm", "-k"),
    "unit": Suite(_STESTR, pick=""),
    "nova": Suite(("nice -n 5 python -m tests.nova unit",), pick="-k"),
    "style": Suite((*_tox("pep8"), *_tox("docs"))),
    "types": Suite(_tox("types")),
    "gpu": Suite(("python -m tests.gpu",), pick="-k"),
}
# They take too long for each change, or need a real card, and run only by their names.
ON_REQUEST = ("bars", "takeover", "gpu")


@dataclasses.dataclass
class Outcome:
    """The result of a suite, or of several.

    ``failed`` has the output of tests that failed, ``skipped`` the reasons of skipped ones, and
    ``unsteady`` the output of those that failed and then passed alone, all by the test's name.
    """

    suite: str = ""
    passed: int = 0
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    unsteady: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def add(self, other: Outcome) -> None:
        self.passed += other.passed
        self.failed |= other.failed
        self.skipped |= other.skipped
        self.unsteady |= other.unsteady

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


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


def run(name: str, nova: int, tests: Sequence[str] = (), *, limit_s: int = 3900) -> Outcome:
    """Run the suite *name* in the environment of a Nova release, and return the result.

    :param nova: the release's major version, a key of ``RELEASES``
    :param tests: run only tests whose names contain one of these; by default all
    :param limit_s: the seconds after which a command is ended
    """
    suite, total, began = SUITES[name], Outcome(name), time.monotonic()
    (STATE / "stestr" / f"{name}-{RELEASES[nova]}").mkdir(parents=True, exist_ok=True)
    # stestr takes one pattern.
    picked = ["|".join(tests)] if tests and suite.pick == "" else tests
    for number, command in enumerate(suite.commands):
        argv = shlex.split(command.format(suite=name, release=RELEASES[nova]))
        if suite.pick is not None:
            argv += [word for text in picked for word in (suite.pick, text) if word]
        log = LOG / f"{name}{number or ''}-{RELEASES[nova]}{'-again' * (limit_s < 3900)}.log"
        returncode = _execute(argv, log, nova, limit_s)
        label = f"{name}: {' '.join(command.split()[:3])}" if suite.commands[1:] else name
        done = read(log.read_text(errors="replace").splitlines(), returncode, label)
        total.add(done)
        for test, reason in done.failed.items():
            _say(f"{name}: FAILED {test}\n{reason[-6000:]}\n   all of it: {log}")
    total.seconds = time.monotonic() - began
    _say(f"{name}: {total} ({total.seconds:.0f} s)")
    return total


def _execute(argv: Sequence[str], log: Path, nova: int, limit_s: int) -> int:
    """Run a command, which ends with this process, and return its exit status.

    The output goes to the file *log*, because a daemon that a test left would keep a pipe open.

    :param limit_s: the seconds after which the command is ended
    """
    bounds = ["setpriv", "--pdeathsig", "TERM", "timeout", "--kill-after=60", str(limit_s)]
    with log.open("wb") as output:
        return subprocess.run(
            [*bounds, *argv],
            cwd=ROOT,
            env=environments.variables(nova),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        ).returncode


def together(names: Sequence[str], one: Callable[[str], Outcome]) -> list[Outcome]:
    """Run suites of different lanes at the same time, and return the results in order of *names*.

    One lane more than there are processors runs at a time, because suites often wait.

    :param one: runs the suite with this name
    """
    lanes: dict[str, list[str]] = {}
    for name in names:
        lanes.setdefault(SUITES[name].lane or name, []).append(name)
    with futures.ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:
        done = pool.map(lambda lane: [*map(one, lane)], lanes.values())
        return sorted(itertools.chain(*done), key=lambda outcome: names.index(outcome.suite))


def again(first: Outcome, one: Callable[[str, Sequence[str]], Outcome]) -> None:
    """Run the failed tests of a suite again while nothing else runs, and update its result.

    A test that passes then counts as unsteady: it may fail on a busy machine. If more than five
    failed, none is run again, because they probably have a common cause.

    :param first: the result to update
    :param one: runs tests of a suite, all if none is named
    """
    is_late = any("time limit" in test for test in first.failed)
    if is_late or first.suite in ("style", "types") or not 0 < len(first.failed) <= 5:
        return
    names = [test.partition("(")[0] for test in first.failed]
    whole = SUITES[first.suite].pick is None or not all(n.startswith("tests.") for n in names)
    second = one(first.suite, () if whole else names)
    first.seconds += second.seconds
    if second.passed and not second.failed and not second.skipped:
        first.passed = second.passed + (0 if whole else first.passed)
        first.unsteady, first.failed = first.failed, {}


def refuse_skips(outcome: Outcome) -> None:
    """Count skipped tests as failed unless tests/allowed-skips.txt lists their reason."""
    lines = (ROOT / "tests/allowed-skips.txt").read_text().splitlines()
    allowed = [line.partition(" -- ")[0] for line in lines if line and not line.startswith("#")]
    for test, reason in list(outcome.skipped.items()):
        if not any(part in reason for part in allowed):
            outcome.failed[f"{test} skipped, not in tests/allowed-skips.txt: {reason}"] = ""
            del outcome.skipped[test]


def table(outcomes: Sequence[Outcome], install_s: float, elapsed_s: float) -> Outcome:
    """Print a table with a line for each suite, and return the sum of all results."""
    total = Outcome("(all)", seconds=elapsed_s)
    for outcome in outcomes:
        total.add(outcome)
    print(f"\n{'':14}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}")
    for row in (Outcome("(install)", seconds=install_s), *outcomes, total):
        counts = f"{row.passed:8}{len(row.failed):8}{len(row.skipped):8}"
        print(f"{row.suite:14}{counts}{row.seconds:9.1f}")
    return total


def _say(text: str) -> None:
    print(f"   {text}", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Install what the suites need, and run them.

    :returns: the exit status: 0 if no test failed, 1 if one did, 2 if the suites cannot run
    """
    parser = argparse.ArgumentParser(
        prog="tools/test",
        description="Install what the suites need below .tools/ and run them side by side; as root "
        "where Debian packages are missing. CONTRIBUTING.rst says what each suite is. With CI=true "
        "in the environment failed tests run once more after all suites, and a skip whose reason "
        "tests/allowed-skips.txt lacks counts as failed.",
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--nova", type=int, choices=sorted(RELEASES), default=NEWEST)
    text = "run only the tests whose name contains this text, or that of another -k"
    parser.add_argument("-k", dest="patterns", action="append", default=[], help=text)
    parser.add_argument(
        "--no-install", action="store_true", help="use the environment as it is installed"
    )
    options = parser.parse_args(arguments)
    of_release = [name for name in SUITES if options.nova == NEWEST or name == "functional"]
    if wrong := set(options.suites) - set(of_release):
        parser.error(
            f"no suite with Nova {options.nova} is called {', '.join(sorted(wrong))}; there are: "
            f"{', '.join(of_release)}"
        )
    wanted = options.suites or {*of_release} - {*ON_REQUEST}
    names = [name for name in of_release if name in wanted]
    for ending in (signal.SIGINT, signal.SIGTERM):
        # At once: the commands end with this process, and the pool would wait for them.
        signal.signal(ending, lambda number, _: os._exit(128 + number))
    LOG.mkdir(parents=True, exist_ok=True)
    _say(f"Nova {options.nova} ({RELEASES[options.nova]}): {' '.join(names)}; logs in {LOG}")
    began = time.monotonic()
    try:
        if not options.no_install:
            environments.install(options.nova)
        elif not environments.path(options.nova).exists():
            parser.error(
                f"{environments.path(options.nova)} does not exist: run without --no-install"
            )
    except (packages.MachineNotReady, subprocess.CalledProcessError) as error:
        print(f"tools/test: {error}; see {LOG}", file=sys.stderr)
        return 2
    installed = time.monotonic()
    outcomes = together(names, lambda name: run(name, options.nova, options.patterns))
    for outcome in outcomes if os.environ.get("CI") == "true" else ():
        again(outcome, lambda name, tests: run(name, options.nova, tests, limit_s=900))
        refuse_skips(outcome)
    total = table(outcomes, installed - began, time.monotonic() - installed)
    lines = [f"SKIP {test}: {why}" for test, why in total.skipped.items()]
    lines += [f"UNSTEADY, passed when run again alone: {test}" for test in total.unsteady]
    lines += [f"FAIL {test}" for test in total.failed]
    print("\n".join([*lines, str(total)]), flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
