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

from lab import packages
from lab.cloud import cgroups, image, libvirtd, nodes, steps
from lab.cloud import packages as debian
from tests.lxc import place

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# A libvirtd with its LXC driver, and what a guest's root file system is made with
_PACKAGES = (
    *("busybox-static", "e2fsprogs", "libvirt-clients", "libvirt-daemon-driver-lxc"),
    *("libvirt-daemon-system", "mount", "qemu-utils", "util-linux"),
)
# Only for test_shadow: what traces the command, and the message bus that it calls the conductor by
_TRACING = ("rabbitmq-server", "strace")


def obstacle() -> str | None:
    """Install what is missing; why this machine cannot run an LXC guest, or ``None``."""
    if os.geteuid() != 0:
        return "only root can mount disks and run libvirtd; run it as root"
    try:
        packages.install(_PACKAGES, _ROOT / ".tools/log/apt-lxc.log")
        cgroups.detect(pathlib.Path("/proc/self/mountinfo").read_text())
    except (packages.MachineNotReady, cgroups.Unservable) as error:
        return str(error)
    return None


def lacks_tracing() -> str | None:
    """Install what ``nova-gpu shadow`` is traced with; return why that failed, or ``None``."""
    try:
        debian.debian(_TRACING, _ROOT / ".tools/log/apt-lxc-tracing.log")
    except steps.Failed as error:
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
            image.build(folder / "image.raw")
            status = _run_inside(lv, [sys.executable, "-m", module, *arguments])
        left = lv.leftovers()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for leftover in left:
        print(f"left behind: {leftover}", file=sys.stderr)
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
