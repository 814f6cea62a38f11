# SPDX-License-Identifier: Apache-2.0
"""Runs a program of this repository beside a libvirtd of its own, and looks what it left."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from lab.cloud import cgroups, libvirtd, nodes
from tests.lxc import place

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PROGRAMS = ("busybox", "libvirtd", "losetup", "mke2fs", "nsenter", "qemu-img", "unshare", "virsh")


def obstacle() -> str | None:
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


def run(module: str, *arguments: str) -> int:
    """The exit status of *module*, run in the mount namespace of a libvirtd with pretend GPUs; 1
    as well where something was left behind.

    Its standard output is ours. What comes on standard error, Nova's log, is shown when it fails.
    """
    # Who ends this run ends what it started, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nova-gpu-lxc-", dir="/var/tmp"))
    folder.chmod(0o711)  # a guest's root is nobody on the host, and its disk is below
    pretended = nodes.pretend_nvidia() + nodes.pretend_nvidia_caps(place.CAPS)
    lv = libvirtd.PrivateLibvirtd(folder, nodes.machine() + pretended)
    started = time.monotonic()
    try:
        with lv:
            seconds = time.monotonic() - started
            print(f"libvirtd {lv.virsh('--version')} is up, {seconds:.1f} s", file=sys.stderr)
            place.furnish(folder)
            status = _run_inside(lv, [sys.executable, "-m", module, *arguments])
        left = lv.leftovers()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for each in left:
        print(f"left behind: {each}", file=sys.stderr)
    return status or bool(left)


def _run_inside(lv: libvirtd.PrivateLibvirtd, argv: Sequence[str]) -> int:
    log = lv.folder / "stderr"
    with log.open("w") as stderr:
        # Entering a mount namespace changes the working directory.
        command = lv.enter(["env", f"--chdir={_ROOT}", *argv])
        environment = {**os.environ, place.FOLDER: str(lv.folder)}
        status = subprocess.run(command, env=environment, stderr=stderr).returncode
    if status:
        print("\n".join(log.read_text().splitlines()[-20:]), file=sys.stderr)
    return status
