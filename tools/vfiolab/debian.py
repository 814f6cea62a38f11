# SPDX-License-Identifier: Apache-2.0
"""Debian's packages: those this machine needs, those of the VM, and the kernels of both levels."""

from __future__ import annotations

import os
import pathlib
import platform
import re
import subprocess

from tools.novalab import steps

CODENAME = "bookworm"
# On this machine.
NEEDED = (
    *("bc", "cpio", "e2fsprogs", "gcc", "kmod", "make", "mmdebstrap"),
    "qemu-system-x86",
)
# In the VM: libvirt with its two drivers, what Nova calls, and what the suite of containers calls.
_ROOT = (
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
    # libvirt asks every emulator what it can before the first guest, for seconds.
    "usr/bin/qemu-system-i386",
)
# The VM's has drivers for everything; the guests' is small and starts fast under emulation.
VM_KERNEL, GUEST_KERNEL = "linux-image-amd64", "linux-image-cloud-amd64"
ROOT_KEY = (CODENAME, _ROOT, _LEFT_OUT)


def obstacle() -> str | None:
    """Why no VM can be built and run on this machine, ``None`` where it can."""
    if platform.machine() != "x86_64":
        return f"needs an x86_64 machine, this is {platform.machine()}"
    if os.geteuid() != 0:
        return "needs root: it installs Debian packages into a folder and makes a disk of it"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    if (release.get("ID"), release.get("VERSION_CODENAME")) != ("debian", CODENAME):
        found = release.get("PRETTY_NAME", "unknown")
        return f"needs Debian {CODENAME}, which the VM runs as well; this is {found}"
    return None


def kernel(package: str) -> str:
    """What a kernel's metapackage stands for today: ``linux-image-6.1.0-56-amd64``.

    :raises steps.Failed: where apt does not say
    """
    argv = ["apt-cache", "show", "--no-all-versions", package]
    said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    if (match := re.search(r"^Depends: (linux-image-\S+)", said, re.MULTILINE)) is None:
        raise steps.Failed(f"apt-cache does not know {package}: run apt-get update")
    return match[1]


def unpack(package: str, folder: pathlib.Path, log: pathlib.Path) -> None:
    """Fetches *package* and unpacks it into *folder*; nothing is installed.

    :raises steps.Failed: where it cannot be fetched
    """
    folder.mkdir()
    # As root, for the user _apt cannot write into this folder.
    fetch = ["apt-get", "-o", "APT::Sandbox::User=root", "download", package]
    steps.run(fetch, log, cwd=folder)
    (file,) = folder.glob("*.deb")
    steps.run(["dpkg-deb", "--extract", str(file), str(folder)], log)
    file.unlink()


def install_root(folder: pathlib.Path, log: pathlib.Path) -> None:
    """The VM's root tree, without a kernel, from where this machine's packages come from.

    :raises steps.Failed: with the log
    """
    argv = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(_ROOT)}"]
    argv += ['--aptopt=Apt::Install-Recommends "false"']
    argv += [f"--dpkgopt=path-exclude=/{path}" for path in _LEFT_OUT]
    sources = pathlib.Path("/etc/apt/sources.list.d/debian.sources")
    if not sources.exists():
        sources = pathlib.Path("/etc/apt/sources.list")
    steps.run([*argv, CODENAME, str(folder), str(sources)], log)
    for pattern in ("var/cache/apt/*.bin", "var/lib/apt/lists/*_*"):
        for path in folder.glob(pattern):
            path.unlink()
