# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.vfio [-k PATTERN]``: Nova in one process in a VM with vfio, KVM and cards.

Run as root. It builds the VM where it is not there yet, runs the parts of ``tests.vfio.inside`` in
one each, and ends with unittest's own closing lines, or with 77 after a line ``SKIP: reason`` where
this machine can run no such VM. Where a VM's own kernel panicked it is booted again for the tests
that are left.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent import futures

from tests.vfio import inside, tally
from tools.novalab import steps
from tools.testing import machine
from tools.vfiolab import boot, place, vm

_SKIPPED = 77
# What Nova and others print is not the tests' output.
_STDERR = "stderr"
_SHELL = ("sh", "-c", f'exec "$@" 2>>/out/{_STDERR}', "sh")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vfio", description=__doc__)
    parser.add_argument("-k", dest="patterns", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--rounds", type=int, default=2, help="instances made and deleted in a row")
    parser.add_argument("--limit-s", type=float, default=1500)
    parser.add_argument("--out", type=pathlib.Path, help="keep the logs there")
    arguments = parser.parse_args()
    venv = pathlib.Path(sys.prefix)
    if reason := vm.obstacle(venv):
        print(f"SKIP: {reason}")
        return _SKIPPED
    try:
        made = vm.build(place.STATE, place.ROOT, venv)
    except machine.MachineNotReady as error:
        print(f"SKIP: {error}")
        return _SKIPPED
    except steps.Failed as error:
        print(f"tests.vfio: {error}", file=sys.stderr)
        return 2
    out = arguments.out or pathlib.Path(tempfile.mkdtemp(prefix="nova-gpu-vfio-", dir="/var/tmp"))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    passed = _run(made, out, arguments)
    if passed and not arguments.out:
        shutil.rmtree(out)
    else:
        print(f"logs: {out}", file=sys.stderr)
    return 0 if passed else 1


def _run(made: vm.VM, out: pathlib.Path, arguments: argparse.Namespace) -> bool:
    """All parts side by side, each in a VM of its own: a VM has one processor."""
    started = time.monotonic()
    stop = threading.Event()

    def end(number: int, frame: object) -> None:
        stop.set()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    with futures.ThreadPoolExecutor(len(inside.PARTS)) as pool:
        running = [
            pool.submit(_run_part, made, part, out / part, arguments, stop) for part in inside.PARTS
        ]
        try:
            tallies = [each.result() for each in running]
        finally:
            stop.set()
    print("\n".join(["", *tally.closing(tallies, time.monotonic() - started)]), flush=True)
    for part, each in zip(inside.PARTS, tallies, strict=True):
        stderr = out / part / _STDERR
        if not each.passed and stderr.exists():
            print("\n".join(stderr.read_text().splitlines()[-20:]), file=sys.stderr)
    return all(each.passed for each in tallies)


def _run_part(
    made: vm.VM,
    part: str,
    out: pathlib.Path,
    arguments: argparse.Namespace,
    stop: threading.Event,
) -> tally.Tally:
    out.mkdir()
    counted = tally.Tally()

    def show(text: str) -> None:
        # Written at once, for the others write as well.
        sys.stdout.write(text)
        sys.stdout.flush()

    module = ["python", "-W", "ignore", "-m", "tests.vfio.inside", part]
    counted.last = boot.run(
        made,
        [*_SHELL, *module, *arguments.patterns],
        out,
        limit_s=arguments.limit_s,
        environment={"ROUNDS": str(arguments.rounds)},
        stop=stop,
        on_output=lambda text: show(counted.read(text)),
        on_retry=lambda lost: show(counted.lose(lost)),
    )
    return counted


if __name__ == "__main__":
    sys.exit(main())
