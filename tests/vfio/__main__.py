# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.vfio [-k PATTERN]``: Nova in one process in a VM with vfio, KVM and cards.

Run as root. It builds the VM where it is not there yet, runs ``tests.vfio.inside`` in it, and ends
with unittest's own closing lines, or with 77 after a line ``SKIP: reason`` where this machine can
run no such VM. Where the VM's own kernel panicked it is booted again for the tests that are left.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import signal
import sys
import tempfile
import time

from tests.vfio import tally
from tools.novalab import steps
from tools.testing import machine
from tools.vfiolab import boot, place, vm

_SKIPPED = 77


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vfio", description=__doc__)
    parser.add_argument("-k", dest="patterns", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--rounds", type=int, default=2, help="instances made and deleted in a row")
    parser.add_argument("--limit-s", type=float, default=1500)
    parser.add_argument("--out", type=pathlib.Path, help="keep the logs there")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
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
    started = time.monotonic()
    counted = tally.Tally()

    def show(text: str) -> None:
        print(text, end="", flush=True)
        counted.read(text)

    def again(boot_before: boot.Boot) -> None:
        counted.lost(boot_before)
        print(
            f"\nthe VM has to be booted again, after {counted.ran} tests: {boot_before.end.value} "
            f"{boot_before.reason}",
            flush=True,
        )

    command = ["python", "-W", "ignore", "-m", "tests.vfio.inside", *arguments.patterns]
    last = boot.run(
        made,
        command,
        out,
        limit_s=arguments.limit_s,
        environment={"ROUNDS": str(arguments.rounds)},
        on_output=show,
        on_retry=again,
    )
    print("\n".join(["", *counted.closing(last, time.monotonic() - started)]), flush=True)
    return last.status == 0 and not counted.failed


if __name__ == "__main__":
    sys.exit(main())
