# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.vfio [-k PATTERN]``: Nova with its nova-compute in a VM with vfio and cards.

Run as root. It builds the VM where it is not there yet, boots one for each part of the tests, and
prints stestr's lines, or ends with 77 after a line ``SKIP: reason`` where this machine
can run no such VM. Where a VM's own kernel panicked it is booted again for the tests that are left.
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
import threading
import time
from concurrent import futures

from lab import packages
from lab.cloud import steps
from lab.vm import boot
from tests.vfio import benches, outside, progress, tally
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
    parser.add_argument("--rounds", type=int, default=1, help="instances made and deleted in a row")
    parser.add_argument("--limit-s", type=float, default=2100)
    parser.add_argument(
        "--vms", type=int, choices=(1, 2), default=2, help="one costs less, two are faster"
    )
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
    """In as many VMs as asked for: a VM has one processor. One has the tests first that need no
    cloud.
    """
    started = time.monotonic()
    stop = threading.Event()

    def end(number: int, frame: object) -> None:
        stop.set()
        sys.exit(128 + number)

    def run(part: str) -> tally.Tally:
        return _run_part(out / part, arguments, stop)

    signal.signal(signal.SIGTERM, end)
    parts = progress.PARTS[-arguments.vms :]
    with futures.ThreadPoolExecutor(len(parts)) as pool:
        running = {part: pool.submit(run, part) for part in parts}
        try:
            tallies = {part: each.result() for part, each in running.items()}
        finally:
            stop.set()
    said = tally.closing(list(tallies.values()), time.monotonic() - started)
    print("\n".join(["", *said]), flush=True)
    for part, each in tallies.items():
        stderr = out / part / tests_place.STDERR
        if not each.passed and stderr.exists():
            print("\n".join(stderr.read_text().splitlines()[-20:]), file=sys.stderr)
    ran = sum(each.ran for each in tallies.values())
    return ran > 0 and all(each.passed for each in tallies.values())


def _show(text: str) -> None:
    # Written at once, for the other part writes as well.
    sys.stdout.write(text)
    sys.stdout.flush()


def _run_part(
    out: pathlib.Path, arguments: argparse.Namespace, stop: threading.Event
) -> tally.Tally:
    out.mkdir()
    counted = tally.Tally()
    deadline = time.monotonic() + arguments.limit_s
    for attempt in range(boot.RETRIES + 1):
        counted.last = _once(out, arguments, stop, deadline, counted)
        if counted.last.is_valid or attempt == boot.RETRIES:
            break
        _show(counted.lose(counted.last))
    return counted


def _once(
    out: pathlib.Path,
    arguments: argparse.Namespace,
    stop: threading.Event,
    deadline: float,
    counted: tally.Tally,
) -> boot.Boot:
    argv = [sys.executable, "-W", "ignore", "-m", "tests.vfio.outside", str(out)]
    argv += [os.pathsep.join(arguments.tests), *arguments.patterns]
    started = time.monotonic()
    with (out / tests_place.STDERR).open("ab") as stderr:
        child = subprocess.Popen(
            [*boot.TIED, *argv],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "ROUNDS": str(arguments.rounds)},
        )
        reader = threading.Thread(target=_read, args=(child, counted))
        reader.start()
        while child.poll() is None and time.monotonic() < deadline and not stop.is_set():
            time.sleep(0.2)
        is_up = child.poll() is None
        child.kill()
        child.wait()
        reader.join()
    seconds = time.monotonic() - started
    if is_up:
        return boot.Boot(boot.End.LIMIT, None, seconds)
    if child.returncode == outside.LOST:
        return outside.lost(out)
    return boot.Boot(boot.End.EXIT, child.returncode, seconds)


def _read(child: subprocess.Popen[str], counted: tally.Tally) -> None:
    assert child.stdout
    for line in child.stdout:
        _show(counted.read(line))


if __name__ == "__main__":
    sys.exit(main())
