# SPDX-License-Identifier: Apache-2.0
"""``python -m lab.vm``: runs one command in a VM with an IOMMU, vfio, KVM and cards.

Run it as root with the Python of tools/test's environment.

    .tools/venv-2026.2/bin/python -m lab.vm build
    .tools/venv-2026.2/bin/python -m lab.vm run -- python -m unittest tests.vfio.test_binding
    .tools/venv-2026.2/bin/python -m lab.vm run -- sh -c 'lspci -nnk; virsh nodedev-list'

In the VM this repository is /project (read-only, and the working folder), and /out is the folder
given with --out here.
"""

from __future__ import annotations

import argparse
import pathlib
import signal
import sys
import tempfile
from collections.abc import Sequence

from lab import packages
from lab.cloud import steps
from lab.vm import boot, build_cache, vm

_SKIPPED = 77


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if reason := vm.obstacle(options.venv):
        print(f"SKIP: {reason}")
        return _SKIPPED
    fields = {}
    if options.verb == "run":
        fields = {
            "memory_mib": options.memory_mib,
            "iommu": not options.no_iommu,
            "bare": options.bare,
            "append": options.append,
        }
    try:
        made = vm.build(options.state, options.tree, options.venv, **fields)
    except (steps.Failed, packages.MachineNotReady) as error:
        print(f"labvm: {error}", file=sys.stderr)
        return 2
    return _run(made, options) if options.verb == "run" else 0


def _run(made: vm.VM, options: argparse.Namespace) -> int:
    out = options.out or pathlib.Path(tempfile.mkdtemp(prefix="labvm-", dir="/var/tmp"))
    out.mkdir(parents=True, exist_ok=True)
    done = boot.run(
        made,
        options.command,
        out,
        limit_s=options.limit_s,
        on_output=lambda text: print(text, end="", flush=True),
        on_retry=lambda retry: print(f"labvm: {retry.end.value}: {retry.reason}; booting again"),
    )
    print(f"labvm: {done.end.value} after {done.seconds:.0f} s; see {out}", file=sys.stderr)
    return 1 if done.status is None else done.status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.vm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--tree", type=pathlib.Path, default=build_cache.ROOT, help="what /project is"
    )
    common.add_argument("--venv", type=pathlib.Path, default=pathlib.Path(sys.prefix))
    common.add_argument("--state", type=pathlib.Path, default=build_cache.STATE)
    verbs.add_parser("build", parents=[common], help="make what a VM needs")
    run = verbs.add_parser("run", parents=[common], help="run a command in one")
    run.add_argument("command", nargs="+", help="after --")
    run.add_argument("--out", type=pathlib.Path, help="a folder; default: a new one")
    run.add_argument("--limit-s", type=float, default=600.0, help="for all boots together")
    run.add_argument("--memory-mib", type=int, default=3072)
    run.add_argument("--no-iommu", action="store_true", help="a kernel without the IOMMU")
    run.add_argument("--bare", action="store_true", help="without udev and libvirtd")
    run.add_argument("--append", default="", help="added to the kernel's command line")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
