# SPDX-License-Identifier: Apache-2.0
"""The control groups of this machine, and those that a container left behind."""

from __future__ import annotations

import dataclasses
import enum
import pathlib
import re

# libvirt refuses to start an LXC guest without these (virLXCCgroupSetup).
_NEEDED = ("cpuacct", "devices", "memory")
# The name of a guest's group in libvirt (virDomainGenerateMachineName); the pid is the
# controller's.
_MACHINE = re.compile(r"lxc-(\d+)-(.+)\.libvirt-lxc")
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Layout(enum.StrEnum):
    """The versions of control groups on a machine.

    v1: one hierarchy per controller. hybrid: v1 and an empty v2 hierarchy, which libvirt's LXC
    driver does not handle well. v2: one hierarchy; a BPF program controls devices.
    """

    V1 = "v1"
    HYBRID = "hybrid"
    V2 = "v2"


class Unservable(Exception):
    """Control groups of a machine that cannot carry a container; the text has reason and remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Mount:
    target: pathlib.Path
    type: str
    source: str
    options: frozenset[str]
    super_options: frozenset[str]


def mounts(mountinfo: str) -> list[Mount]:
    """Parse the text of /proc/<pid>/mountinfo (proc_pid_mountinfo(5))."""
    mounts_ = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (type_, source, super_options) = before.split(), after.split(" ", 2)
        target = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
        options = frozenset(fields[5].split(","))
        mounts_.append(
            Mount(pathlib.Path(target), type_, source, options, frozenset(super_options.split(",")))
        )
    return mounts_


def detect(mountinfo: str) -> Layout:
    """Return the layout of this machine's control groups.

    :raises Unservable: if no guest could start, with the reason and the remedy
    """
    v1 = [mount for mount in mounts(mountinfo) if mount.type == "cgroup"]
    v2 = [mount for mount in mounts(mountinfo) if mount.type == "cgroup2"]
    if not v1 and not v2:
        raise Unservable(
            "no cgroup filesystem is mounted: mount one, "
            "`mount -t cgroup2 none /sys/fs/cgroup` being the shortest way"
        )
    for mount in v1 or v2:
        if "ro" in mount.options:
            raise Unservable(
                f"{mount.target} is mounted read-only, so no guest can have a group: a container "
                f"without rights over its cgroups? `mount -o remount,rw {mount.target}` as root "
                f"of the machine"
            )
    if not v1:
        return Layout.V2
    present = frozenset[str]().union(*(mount.super_options for mount in v1))
    missing = [name for name in _NEEDED if name not in present]
    if missing:
        raise Unservable(
            f"cgroup v1 without the controllers {', '.join(missing)}: libvirt starts no LXC guest. "
            f"Mount them below /sys/fs/cgroup (`mount -t cgroup -o {missing[0]} none ...`), or "
            f"boot with cgroup v2 only"
        )
    return Layout.HYBRID if v2 else Layout.V1


def hierarchies(mountinfo: str) -> list[pathlib.Path]:
    """Return the mount point of every hierarchy, v1 and v2."""
    return [mount.target for mount in mounts(mountinfo) if mount.type in ("cgroup", "cgroup2")]


def procs_files(mountinfo: str, membership: str) -> list[pathlib.Path]:
    """Return the ``cgroup.procs`` file of each control group of a process.

    The paths are those of the reader's own mounts. *membership* is the text of the process's
    /proc/<pid>/cgroup (cgroups(7)).
    """
    paths = []
    for line in membership.splitlines():
        _, names, path = line.split(":", 2)
        controllers = frozenset(names.split(",")) - {""}
        for mount in mounts(mountinfo):
            if mount.type == ("cgroup" if controllers else "cgroup2") and (
                controllers <= mount.super_options
            ):
                paths.append(mount.target / path.lstrip("/") / "cgroup.procs")
                break
    return paths


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class GuestGroup:
    """The control group of an LXC guest in one hierarchy."""

    path: pathlib.Path
    controller_pid: int
    domain: str

    @property
    def pids(self) -> list[int]:
        files = self.path.rglob("cgroup.procs")
        return sorted({int(pid) for file in files for pid in file.read_text().split()})


def guest_groups(hierarchy: pathlib.Path) -> list[GuestGroup]:
    """Return every LXC guest's group below *hierarchy*.

    libvirt creates them in ``machine``, or in ``machine.slice`` if it uses systemd.
    """
    groups = []
    for parent in hierarchy.glob("machine*"):
        for path in parent.glob("lxc-*.libvirt-lxc"):
            match = _MACHINE.fullmatch(path.name)
            if match:
                groups.append(GuestGroup(path, int(match[1]), match[2]))
    return sorted(groups)


def remove(group: GuestGroup) -> None:
    """Remove the group with all groups below it.

    :raises OSError: EBUSY while a process is in it
    """
    below = [path for path in group.path.rglob("*") if path.is_dir()]
    for path in sorted(below, reverse=True):
        path.rmdir()
    group.path.rmdir()
