# SPDX-License-Identifier: Apache-2.0
"""The command line of ``tools/test``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tools.testing import (
    again,
    allowed,
    environment,
    lanes,
    machine,
    report,
    session,
    suites,
)
from tools.testing.environment import NEWEST, RELEASES, STATE, Environment


def main(arguments: Sequence[str]) -> int:
    """Run what ``arguments`` ask for; 0 when nothing failed, 1 when a test did, 2 when unable."""
    options = _parse(arguments)
    selected = _selected(options)
    env = Environment(options.nova, options.wheels and options.wheels.resolve())
    try:
        allowances = allowed.read(environment.ROOT / "tests" / "allowed-skips.txt")
        report.say(f"Nova {env.nova} ({env.release}): {' '.join(s.name for s in selected)}")
        setup_s = session.timed(lambda: _prepare(env, options.no_install))
    except (machine.MachineNotReady, environment.InstallFailed, allowed.Malformed) as error:
        print(f"tools/test: {error}", file=sys.stderr)
        return 2
    stop = threading.Event()
    start = time.monotonic()
    results = lanes.run(
        selected,
        lambda suite: session.run(
            suite, env, options.pattern, stop, niceness=lanes.niceness(suite)
        ),
        stop,
        at_once=(os.cpu_count() or 1) + 1,
    )
    if options.again:
        results = tuple(
            again.tried(
                result,
                lambda suite, tests: session.run(suite, env, options.pattern, stop, tests=tests),
            )
            for result in results
        )
    refused = allowed.refused(allowances, results) if options.no_skip else ()
    report.summary(setup_s, time.monotonic() - start, results, refused)
    return 1 if refused or any(result.outcome.failed for result in results) else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    described = "\n".join(
        f"  {suite.name:<12}{suite.summary}{' (before a release)' * suite.release_only}"
        for suite in suites.SUITES
    )
    parser = argparse.ArgumentParser(
        prog="tools/test",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Install what the suites need below .tools/, then run them. No name: all of "
        "them but those that run before a release only; those with a libvirtd or a VM of their "
        "own beside the others.",
        epilog=f"suites:\n{described}\n\nLogs are in .tools/log/. On a machine where "
        "Debian packages are missing it must run as root.",
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument(
        "--all",
        action="store_true",
        help="those that run before a release only, too",
    )
    parser.add_argument(
        "--nova",
        type=int,
        choices=sorted(RELEASES),
        default=NEWEST,
        help="the Nova release to test with (default: %(default)s); others than the default run "
        "the functional suite only",
    )
    parser.add_argument("-k", dest="pattern", help="run the tests whose name matches (stestr)")
    parser.add_argument(
        "--no-skip",
        action="store_true",
        default=os.environ.get("CI") == "true",
        help="fail when a test is skipped for a reason that tests/allowed-skips.txt does not list "
        "(the default where CI=true)",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        default=os.environ.get("CI") == "true",
        help="when all have ended, run the tests that failed once more, alone; those that pass "
        "then are named as unsteady (the default where CI=true)",
    )
    parser.add_argument(
        "--no-install",
        action="store_true",
        help="use the virtual environment as it is, install nothing",
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="for a machine without a network: install the wheels in that folder and nothing else. "
        "With the suite gpu alone; python -m tools.wheels DIR makes it",
    )
    options = parser.parse_args(arguments)
    if options.wheels and options.suites != ["gpu"]:
        parser.error("--wheels is for the suite gpu alone: the others need more than is carried")
    for name in options.suites:
        if name not in suites.BY_NAME:
            parser.error(f"no suite {name!r}: choose from {', '.join(suites.BY_NAME)}")
        if options.nova != NEWEST and not suites.BY_NAME[name].every_release:
            parser.error(f"{name} runs with Nova {NEWEST} only, not with {options.nova}")
    return options


def _selected(options: argparse.Namespace) -> list[suites.Suite]:
    if options.suites:
        return [suite for suite in suites.SUITES if suite.name in options.suites]
    return [
        suite
        for suite in suites.SUITES
        if (suite.every_release or options.nova == NEWEST)
        and (options.all or not suite.release_only)
    ]


def _prepare(env: Environment, no_install: bool) -> None:
    if no_install:
        if not Path(env.python).exists():
            raise environment.InstallFailed(f"{env.python} is not there: run without --no-install")
        return
    if env.wheels:
        report.say(f"virtual environment {env.path.relative_to(environment.ROOT)}")
        environment.prepare(env)
        return
    packages = [*machine.python_packages(), *machine.BUILD, *machine.LINTERS]
    if added := machine.install(packages, STATE / "log" / "apt.log"):
        report.say(f"installed {' '.join(added)}")
    report.say(f"virtual environment {env.path.relative_to(environment.ROOT)}")
    environment.prepare(env)


def _stop(number: int, frame: object) -> None:
    """Leave through the ``finally`` clauses, which end the suite's processes."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(main(sys.argv[1:]))
