# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.lxc [-k PATTERN]``: Nova in one process on a real libvirtd with its LXC driver.

Run as root. It starts a libvirtd of its own, runs itself again in that one's mount namespace, where
the tests are, and ends with unittest's own closing lines. What the tests left behind is a failure.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from tests.lxc import place
from tools.novalab import cgroups, libvirtd, nodes

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PROGRAMS = ("busybox", "libvirtd", "losetup", "mke2fs", "nsenter", "qemu-img", "unshare", "virsh")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lxc", description=__doc__)
    parser.add_argument("-k", dest="patterns", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--soak", type=int, default=5, help="instances made and deleted in a row")
    parser.add_argument("--bursts", type=int, default=1, help="rounds of 20 instances at once")
    arguments = parser.parse_args()
    reason = _obstacle()
    if reason:
        print(f"tests.lxc cannot run here: {reason}")
        print("-" * 70)
        print("Ran 0 tests in 0.000s\n\nOK (skipped=1)")
        return 0
    os.environ.update({place.SOAK: str(arguments.soak), place.BURSTS: str(arguments.bursts)})
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nova-gpu-lxc-", dir="/var/tmp"))
    folder.chmod(0o711)  # a guest's root is nobody on the host, and its disk is below
    lv = libvirtd.PrivateLibvirtd(folder, nodes.machine() + nodes.pretend_nvidia())
    started = time.monotonic()
    try:
        with lv:
            print(f"libvirtd {lv.virsh('--version')} is up, {time.monotonic() - started:.1f} s")
            place.furnish(folder)
            inside = [sys.executable, "-m", "tests.lxc.inside", *arguments.patterns]
            environment = {**os.environ, place.FOLDER: str(folder)}
            sys.stdout.flush()
            with (folder / "stderr").open("w") as stderr:  # Nova's log, as far as no test has it
                argv = lv.enter(inside)
                status = subprocess.run(argv, cwd=_ROOT, env=environment, stderr=stderr).returncode
            if status:
                print("\n".join((folder / "stderr").read_text().splitlines()[-20:]))
        left = lv.leftovers()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for each in left:
        print(f"left behind: {each}")
    return status or bool(left)


def _obstacle() -> str | None:
    """Why this machine cannot run an LXC guest, or ``None``."""
    if os.geteuid() != 0:
        return "only root can mount disks and run libvirtd; run it as root"
    missing = [name for name in _PROGRAMS if not shutil.which(name)]
    if missing:
        return f"not found on PATH: {', '.join(missing)}; see bindep.txt"
    try:
        cgroups.detect(pathlib.Path("/proc/self/mountinfo").read_text())
    except cgroups.Unservable as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main())
