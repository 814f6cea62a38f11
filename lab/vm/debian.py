# SPDX-License-Identifier: Apache-2.0
"""Debian's packages for this machine and for the VM, and the kernels of VM and guests."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Sequence

from lab import packages, sources
from lab.cloud import steps

CODENAME = "bookworm"


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """A release of Debian from which a system is built.

    ``kind``: its name in :mod:`lab.vm.build_cache`; no name is the beginning of another. ``suite``:
    the suite whose packages precede all others.
    """

    name: str
    kind: str
    suite: str


STABLE = Release("stable", "system", CODENAME)
# QEMU 10.0 and Linux 6.12. QEMU 7.2 of STABLE cannot migrate a VFIO device live, and the samples of
# its kernel, 6.1, cannot save their devices' state.
NEWER = Release("newer", "newer-system", f"{CODENAME}-backports")
RELEASES = {release.name: release for release in (STABLE, NEWER)}

# The packages for this machine.
NEEDED = (
    *("bc", "cpio", "e2fsprogs", "gcc", "kmod", "make", "mmdebstrap"),
    *("qemu-system-x86", "xz-utils"),
)
# The packages for the VM: libvirt with its two drivers, the programs that Nova runs, and those that
# the suite of containers runs.
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
_APT_GET = ("apt-get", "-o", "APT::Sandbox::User=root")


def obstacle() -> str | None:
    """Return why no VM can be built and run on this machine, ``None`` if one can."""
    if platform.machine() != "x86_64":
        return f"needs an x86_64 machine, this is {platform.machine()}"
    if os.geteuid() != 0:
        return "needs root: it installs Debian packages into a folder and makes a disk of it"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    if (release.get("ID"), release.get("VERSION_CODENAME")) != ("debian", CODENAME):
        name = release.get("PRETTY_NAME", "unknown")
        return f"needs Debian {CODENAME}, which the VM runs as well; this is {name}"
    return None


def write_sources(release: Release, folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Write *release*'s sources into *folder*, derived from this machine's, and return the files.

    :raises steps.Failed: if no source of this machine names Debian itself
    :raises lab.packages.MachineNotReady: if apt knows no source
    """
    texts = {path: path.read_text() for path in sources.files(CODENAME)}
    folder.mkdir()
    # apt derives the format from the end of the name.
    written = tuple(folder / f"{number}-{path.name}" for number, path in enumerate(texts))
    for path, text in zip(written, with_suite(tuple(texts.values()), release), strict=True):
        path.write_text(text)
    return written


def with_suite(texts: Sequence[str], release: Release) -> tuple[str, ...]:
    """Return *texts*, sources in either of apt's formats, with the suite of *release* added.

    The suite is taken from the same mirror.

    :raises steps.Failed: if Debian itself is in none of them
    """
    if release.suite == CODENAME:
        return tuple(texts)
    stanza = rf"^(Suites:(?:.*[ \t])?{CODENAME})(?=\s|$)"
    line = rf"^(deb[ \t].*[ \t]){CODENAME}([ \t].*)$"
    changed, count = [], 0
    for text in texts:
        text, stanzas = re.subn(stanza, rf"\1 {release.suite}", text, flags=re.MULTILINE)
        text, lines = re.subn(line, rf"\g<0>\n\1{release.suite}\2", text, flags=re.MULTILINE)
        changed.append(text)
        count += stanzas + lines
    if not count:
        raise steps.Failed(f"this machine's sources of packages do not name {CODENAME}")
    return tuple(changed)


def apt_options(release: Release, folder: pathlib.Path, log: pathlib.Path) -> list[str]:
    """Return the options with which apt finds the packages of *release*; none if it does anyway.

    The sources are those in *folder*; their lists are kept below it, and this machine's own lists
    do not change.

    :raises tools.suites.machine.MachineNotReady: if the mirror does not have the packages
    """
    if release.suite == CODENAME:
        return []
    values = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": folder,
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Default-Release": release.suite,
    }
    options = [word for name, value in values.items() for word in ("-o", f"{name}={value}")]
    for name in ("lists", "cache"):
        (folder / name).mkdir()
    try:
        steps.run([*_APT_GET, *options, "update"], log)
    except steps.Failed as error:
        reason = f"the packages of {release.suite} cannot be had from this machine's mirror"
        raise packages.MachineNotReady(f"{reason}; see {log}") from error
    return options


def kernel(package: str, apt: Sequence[str] = ()) -> str:
    """Return the package that a kernel's metapackage installs: ``linux-image-6.1.0-56-amd64``.

    :param apt: :func:`apt_options`
    :raises steps.Failed: if apt does not know the package
    """
    argv = ["apt-cache", *apt, "show", "--no-all-versions", package]
    output = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    if (match := re.search(r"^Depends: (linux-image-\S+)", output, re.MULTILINE)) is None:
        raise steps.Failed(f"apt-cache does not know {package}: run apt-get update")
    return match[1]


def unpack(
    packages: Sequence[str], folder: pathlib.Path, log: pathlib.Path, apt: Sequence[str] = ()
) -> None:
    """Fetch *packages* and unpack all of them into *folder*; nothing is installed.

    One call fetches all, because apt reads its whole database at each call.

    :param apt: :func:`apt_options`
    :raises steps.Failed: if one cannot be fetched
    """
    folder.mkdir()
    steps.run([*_APT_GET, *apt, "download", *packages], log, cwd=folder)
    for file in folder.glob("*.deb"):
        steps.run(["dpkg-deb", "--extract", str(file), str(folder)], log)
        file.unlink()


def install_root(
    release: Release, folder: pathlib.Path, written: Sequence[pathlib.Path], log: pathlib.Path
) -> None:
    """Install the VM's root folder, without a kernel, from the sources in the files *written*.

    :raises steps.Failed: with the log
    """
    # Mounts in it end with the process, so that removing the folder meets no mount.
    argv = ["unshare", "--mount", "--", "mmdebstrap", "--mode=root", "--variant=minbase"]
    argv += [f"--include={','.join(_ROOT)}", '--aptopt=Apt::Install-Recommends "false"']
    if release.suite != CODENAME:
        argv += [f'--aptopt=APT::Default-Release "{release.suite}"']
    argv += [f"--dpkgopt=path-exclude=/{path}" for path in _LEFT_OUT]
    steps.run([*argv, CODENAME, str(folder), *map(str, written)], log)
    for pattern in ("var/cache/apt/*.bin", "var/lib/apt/lists/*_*"):
        for path in folder.glob(pattern):
            path.unlink()
