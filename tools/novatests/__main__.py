# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.novatests``: fails where one of Nova's own tests passes with Nova's libvirt
driver and not with ours in its place."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tools.novatests import compared, substituted
from tools.testing import outcome, process
from tools.testing.environment import NEWEST, RELEASES, ROOT, STATE, Environment

SUITES = {"unit": "nova/tests/unit/virt/libvirt", "functional": "nova/tests/functional/libvirt"}
# Seconds for one run of a suite on two cores, with a good margin.
_LIMIT_S = 4 * 3600.0
# So few take one process less time than two take to import Nova.
_FEW = 50


def main(arguments: Sequence[str]) -> int:
    """0 when nothing fails that passes with the stock driver, 1 when something does."""
    # What runs the tests is in a session of its own, and ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    options = _parse(arguments)
    environment = Environment(options.nova)
    failed = False
    for suite in options.suites or SUITES:
        verdict, missing = _compare(environment, suite, options.pattern, options.jobs)
        failed |= bool(verdict or missing)
    return int(failed)


def _compare(
    environment: Environment, suite: str, pattern: str | None, jobs: int
) -> tuple[set[str], int]:
    """The tests that pass with the stock driver alone, and how many were not run."""
    listed = _listed(environment, suite, pattern)
    ours = _run(environment, suite, compared.Driver.OURS, listed, jobs)
    missing = compared.lost(ours, len(listed))
    stock = again = outcome.Outcome()
    if suspects := compared.not_passed(ours):
        few = 1 if len(suspects) < _FEW else jobs
        stock = _run(environment, suite, compared.Driver.STOCK, suspects, few)
    if suspects := suspects - compared.not_passed(stock):
        # Once more and alone: Nova's functional tests do not all bear a busy machine.
        again = _run(environment, suite, compared.Driver.OURS, suspects, 1)
    verdict = compared.passed_by_stock_alone(ours, stock, again)
    name = f"Nova {environment.nova}, {suite}"
    print(compared.line(name, ours, stock, verdict, missing), flush=True)
    for test in sorted(verdict):
        print(f"FAIL {test}", flush=True)
    return verdict, missing


def _listed(environment: Environment, suite: str, pattern: str | None) -> set[str]:
    """The names of the tests"""
    argv, variables = _stestr(environment, suite, compared.Driver.STOCK, "init")
    # It refuses where a run was before; without one there is nothing to list from.
    subprocess.run(argv, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    argv, variables = _stestr(environment, suite, compared.Driver.STOCK, "list", pattern)
    listed = subprocess.run(argv, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return {line for line in listed.stdout.splitlines() if line.startswith("nova.tests.")}


def _run(
    environment: Environment, suite: str, driver: compared.Driver, tests: Iterable[str], jobs: int
) -> outcome.Outcome:
    with tempfile.NamedTemporaryFile("w") as names:
        names.write("".join(f"{test}\n" for test in sorted(tests)))
        names.flush()
        # With their names stestr need not import all of Nova's tests to find them.
        run = ("run", "--concurrency", str(jobs), "--load-list", names.name)
        argv, variables = _stestr(environment, suite, driver, *run)
        log = STATE / "log" / f"novatests-{suite}-{driver}-{environment.release}.log"
        finished = process.run(argv, log=log, environ=variables, limit_s=_LIMIT_S)
    found = outcome.from_stestr(finished.lines, finished.returncode)
    print(f"   {suite}, {driver}: {found}; {log.relative_to(ROOT)}", flush=True)
    return found


def _stestr(
    environment: Environment, suite: str, driver: compared.Driver, *words: str | None
) -> tuple[Sequence[str], Mapping[str, str]]:
    """A command and the variables it needs. What is ``None`` in *words* is left out."""
    repository = STATE / "stestr" / f"novatests-{suite}-{driver}-{environment.release}"
    repository.mkdir(parents=True, exist_ok=True)
    site = _site_packages(environment)
    argv = (
        *("stestr", "--test-path", str(site / SUITES[suite]), "--top-dir", str(site)),
        *("--repo-url", str(repository)),
        *(each for each in words if each is not None),
    )
    variables = environment.variables()
    variables["PYTHON"] = environment.python
    if driver is compared.Driver.OURS:
        variables["PYTHON"] += " -m tools.novatests.substituted"
        variables[substituted.SUITE] = suite
    if environment.nova == NEWEST:
        variables["OS_NOVA_DISABLE_EVENTLET_PATCHING"] = "true"
    return argv, variables


def _site_packages(environment: Environment) -> Path:
    (site,) = (environment.path / "lib").glob("python3*/site-packages")
    return site


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.novatests",
        description="Runs Nova's own libvirt tests with GPULibvirtDriver in the place of "
        "LibvirtDriver, and what does not pass with LibvirtDriver itself. That takes hours "
        "on two cores. tools/test makes the virtual environment that is used.",
    )
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], metavar="SUITE")
    parser.add_argument("--nova", type=int, choices=sorted(RELEASES), default=NEWEST)
    parser.add_argument("-k", dest="pattern", help="the tests whose name matches (stestr)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
