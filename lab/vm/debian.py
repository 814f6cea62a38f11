# SPDX-License-Identifier: Apache-2.0
"""Debian's packages for this machine and for the VM, and the kernels of VM and guests."""

from __future__ import annotations

import os
import pathlib
import platform
import re
import subprocess
import sys
from collections.abc import Sequence

from lab import sources
from lab.cloud import steps

# The releases of Debian that the VM can have, and the Python of each. The VM has this machine's.
PYTHONS = {"bookworm": (3, 11), "trixie": (3, 13)}

# The packages for this machine.
NEEDED = (
    *("bc", "cpio", "e2fsprogs", "gcc", "kmod", "make", "mmdebstrap"),
    *("qemu-system-x86", "xz-utils"),
)
# The packages for the VM: libvirt with its two drivers, the programs that Nova runs, and those that
# the suite of containers runs.
_ROOT = (
    "apparmor",
    "busybox-static",
    "e2fsprogs",
    "iproute2",
    "kmod",
    "libvirt-clients",
    "libvirt-daemon",
    "libvirt-daemon-driver-lxc",
    "libvirt-daemon-driver-qemu",
    "libvirt-daemon-system",
    "mdevctl",
    "mount",
    "ovmf",
    "pciutils",
    "procps",
    "python3",
    "qemu-system-x86",
    "qemu-utils",
    "udev",
    "util-linux",
)
_LEFT_OUT = (
    *(f"usr/share/{name}/*" for name in ("doc", "icons", "info", "locale", "man")),
    # libvirt probes every emulator before the first guest, which takes seconds.
    "usr/bin/qemu-system-i386",
)
# The VM's kernel has drivers for everything; the guests' kernel is small and starts fast under
# emulation.
VM_KERNEL, GUEST_KERNEL = "linux-image-amd64", "linux-image-cloud-amd64"
# apt runs as root, because its user _apt cannot write to folders of root's.
_DOWNLOAD = ("apt-get", "-o", "APT::Sandbox::User=root", "download")


def codename() -> str:
    """Return the codename of this machine's Debian, an empty string on another system."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    return release.get("VERSION_CODENAME", "") if release.get("ID") == "debian" else ""


def obstacle() -> str | None:
    """Return why no VM can be built and run on this machine, ``None`` if one can."""
    if platform.machine() != "x86_64":
        return f"needs an x86_64 machine, this is {platform.machine()}"
    if os.geteuid() != 0:
        return "needs root: it installs Debian packages into a folder and makes a disk of it"
    if codename() not in PYTHONS:
        return (
            f"needs Debian {' or '.join(PYTHONS)}, which the VM has as well; this is another system"
        )
    if sys.version_info[:2] != (python := PYTHONS[codename()]):
        wanted = ".".join(map(str, python))
        return f"needs Python {wanted}, which the VM has; this is {sys.version.split()[0]}"
    return None


def kernel(package: str) -> str:
    """Return the package that a kernel's metapackage installs: ``linux-image-6.1.0-56-amd64``."""
    argv = ["apt-cache", "show", "--no-all-versions", package]
    output = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    if (match := re.search(r"^Depends: (linux-image-\S+)", output, re.MULTILINE)) is None:
        raise steps.Failed(f"apt-cache does not know {package}: run apt-get update")
    return match[1]


def unpack(packages: Sequence[str], folder: pathlib.Path, log: pathlib.Path) -> None:
    """Fetch *packages* and unpack all of them into *folder*; nothing is installed.

    One call fetches all, because apt reads its whole database at each call.
    """
    folder.mkdir()
    steps.run([*_DOWNLOAD, *packages], log, cwd=folder)
    for file in folder.glob("*.deb"):
        steps.run(["dpkg-deb", "--extract", str(file), str(folder)], log)
        file.unlink()


def install_root(folder: pathlib.Path, log: pathlib.Path) -> None:
    """Install the VM's root folder, without a kernel."""
    # Mounts in it end with the process, so that removing the folder meets no mount.
    argv = ["unshare", "--mount", "--", "mmdebstrap", "--mode=root", "--variant=minbase"]
    argv += [f"--include={','.join(_ROOT)}", '--aptopt=Apt::Install-Recommends "false"']
    argv += [f"--dpkgopt=path-exclude=/{path}" for path in _LEFT_OUT]
    steps.run([*argv, codename(), str(folder), *map(str, sources.files(codename()))], log)
    for pattern in ("var/cache/apt/*.bin", "var/lib/apt/lists/*_*"):
        for path in folder.glob(pattern):
            path.unlink()
