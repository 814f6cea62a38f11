# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.nova``: fails where one of Nova's own tests passes with Nova's libvirt driver
and not with this one in its place."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence

from tests.nova import substituted
from tools import environments, outcomes

SUITES = {"unit": "nova/tests/unit/virt/libvirt", "functional": "nova/tests/functional/libvirt"}
# So few take one process less time than two take to import Nova.
_FEW = 50


def main(arguments: Sequence[str]) -> int:
    """Return 0 when nothing fails that passes with the stock driver, 1 when something does."""
    options = _parse(arguments)
    os.environ.update(environments.variables(options.nova))
    failed = [suite for suite in options.suites or SUITES if _regressions(suite, options)]
    return 1 if failed else 0


def _regressions(suite: str, options: argparse.Namespace) -> set[str]:
    """The tests that pass with the stock driver alone"""
    tests = _listed(suite, options)
    ours = _passed(suite, options, tests, is_ours=True)
    suspects = tests - ours
    suspects &= _passed(suite, options, suspects, is_ours=False)
    # Once more and alone: Nova's functional tests do not all bear a busy machine.
    regressions = suspects - _passed(suite, options, suspects, is_ours=True)
    print(f"Nova {options.nova}, {suite}: {len(ours)} of {len(tests)} pass with our driver at once")
    print("\n".join(f"FAIL {test}: passes with the stock driver" for test in sorted(regressions)))
    # Without a test the selection is wrong, or Nova has moved them.
    return regressions if tests else {suite}


def _listed(suite: str, options: argparse.Namespace) -> set[str]:
    # It refuses where a run was before; without one there is nothing to list from.
    subprocess.run(_stestr(suite, options, "init"), stderr=subprocess.DEVNULL)
    argv = [*_stestr(suite, options, "list"), *filter(None, [options.pattern])]
    environ = _variables(suite, options, is_ours=False)
    done = subprocess.run(argv, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return {line for line in done.stdout.splitlines() if line.startswith("nova.tests.")}


def _passed(
    suite: str, options: argparse.Namespace, tests: Iterable[str], *, is_ours: bool
) -> set[str]:
    """Those of the tests that pass"""
    if not (names := sorted(tests)):
        return set()
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("".join(f"{name}\n" for name in names))
        file.flush()
        # With their names stestr need not import all of Nova's tests to find them.
        jobs = 1 if len(names) < _FEW else options.jobs
        argv = [*_stestr(suite, options, "run"), "--load-list", file.name]
        argv += ["--concurrency", str(jobs)]
        environ = _variables(suite, options, is_ours=is_ours)
        done = subprocess.run(argv, env=environ, stdout=subprocess.PIPE, text=True)
    driver = "ours" if is_ours else "stock"
    log = environments.LOG / f"nova-{suite}-{driver}-{environments.RELEASES[options.nova]}.log"
    log.write_text(done.stdout)
    print(f"{suite}, {driver}: {log}", flush=True)
    matches = map(outcomes.TEST_LINE.match, done.stdout.splitlines())
    return {match[1] for match in matches if match and match[2] == "ok"}


def _stestr(suite: str, options: argparse.Namespace, command: str) -> list[str]:
    release = environments.RELEASES[options.nova]
    repository = environments.STATE / "stestr" / f"nova-{suite}-{release}"
    repository.mkdir(parents=True, exist_ok=True)
    (site,) = environments.path(options.nova).glob("lib/python3*/site-packages")
    folder = ["--test-path", str(site / SUITES[suite]), "--top-dir", str(site)]
    return ["stestr", *folder, "--repo-url", str(repository), command]


def _variables(suite: str, options: argparse.Namespace, *, is_ours: bool) -> dict[str, str]:
    python = str(environments.path(options.nova) / "bin/python")
    own = {"PYTHON": python}
    if is_ours:
        own = {"PYTHON": f"{python} -m {substituted.__name__}", substituted.SUITE: suite}
    if options.nova == environments.NEWEST:
        own["OS_NOVA_DISABLE_EVENTLET_PATCHING"] = "true"
    return {**os.environ, **own}


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.nova",
        description="Runs Nova's own libvirt tests with GPULibvirtDriver in the place of "
        "LibvirtDriver, and what does not pass with LibvirtDriver itself. That takes hours "
        "on two cores. tools/test makes the virtual environment that is used.",
    )
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], metavar="SUITE")
    releases, newest = environments.RELEASES, environments.NEWEST
    parser.add_argument("--nova", type=int, choices=releases, default=newest)
    parser.add_argument("-k", dest="pattern", help="the tests whose name matches (stestr)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
