# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.vfio [-k PATTERN]``: Nova with its nova-compute in a VM with vfio and cards.

Run as root. It builds the VM where it is not there yet, boots it, and prints stestr's lines, or
ends with 77 after a line ``SKIP: reason`` where this machine can run no such VM. Where a VM's own
kernel panicked it is booted again for the tests that are left.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from lab import packages
from lab.cloud import steps
from lab.vm import boot
from tests.vfio import benches, outside, progress
from tests.vfio import place as tests_place
from tools import outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vfio", description=__doc__)
    parser.add_argument("-k", dest="patterns", action="append", default=[], metavar="PATTERN")
    parser.add_argument(
        "--tests",
        nargs="+",
        default=tests_place.TESTS,
        metavar="FOLDER",
        help=f"in the same VMs; default: {' '.join(tests_place.TESTS)}",
    )
    parser.add_argument("--limit-s", type=float, default=3600)
    parser.add_argument("--out", type=pathlib.Path, help="keep the logs there")
    arguments = parser.parse_args()
    try:
        bench = benches.of(arguments.tests)
    except ValueError:
        parser.error(f"not in the same VMs: {' '.join(arguments.tests)}")
    if reason := benches.obstacle(bench):
        print(f"SKIP: {reason}")
        return outcomes.SKIPPED
    try:
        benches.build(bench)
    except packages.MachineNotReady as error:
        print(f"SKIP: {error}")
        return outcomes.SKIPPED
    except steps.Failed as error:
        print(f"tests.vfio: {error}", file=sys.stderr)
        return 2
    out = arguments.out or pathlib.Path(tempfile.mkdtemp(prefix="nova-gpu-vfio-", dir="/var/tmp"))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    passed = _run(out, arguments)
    if passed and not arguments.out:
        shutil.rmtree(out)
    else:
        print(f"logs: {out}", file=sys.stderr)
    return 0 if passed else 1


def _run(out: pathlib.Path, arguments: argparse.Namespace) -> bool:
    began, lost = time.monotonic(), list[boot.Boot]()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    while not (last := _once(out, arguments, began)).is_valid and len(lost) < boot.RETRIES:
        lost.append(last)
    ended, failed = progress.counts(out)
    lines = [f"\nVM retried: {attempt.end.value} {attempt.reason}" for attempt in lost]
    if last.status is None:
        ended, failed = ended + 1, failed + 1
        lines += ["{0} the VM ... FAILED", f"{last.end.value} {last.reason}".rstrip()]
    print("\n".join([*lines, f"Ran {ended} tests in {time.monotonic() - began:.3f}s"]), flush=True)
    passed = last.status == 0 and ended > 0 and not failed
    if not passed and (stderr := out / tests_place.STDERR).exists():
        print("\n".join(stderr.read_text().splitlines()[-20:]), file=sys.stderr)
    return passed


def _once(out: pathlib.Path, arguments: argparse.Namespace, began: float) -> boot.Boot:
    argv = [sys.executable, "-W", "ignore", "-m", "tests.vfio.outside", str(out)]
    argv += [os.pathsep.join(arguments.tests), *arguments.patterns]
    started = time.monotonic()
    with (out / tests_place.STDERR).open("ab") as stderr:
        child = subprocess.Popen([*boot.TIED, *argv], stderr=stderr)
    try:
        status = child.wait(began + arguments.limit_s - started)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return boot.Boot(boot.End.LIMIT, None, time.monotonic() - started)
    if status == outside.LOST:
        return outside.lost(out)
    return boot.Boot(boot.End.EXIT, status, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main())
