# SPDX-License-Identifier: Apache-2.0
"""The control groups (cgroups) of this machine, and those of LXC guests among them."""

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
    """The cgroup version that a machine uses.

    v1: a hierarchy for each controller. hybrid: v1 and a v2 hierarchy without controllers, which
    libvirt's LXC driver does not handle well. v2: one hierarchy; BPF programs control devices.
    """

    V1 = "v1"
    HYBRID = "hybrid"
    V2 = "v2"


class Unservable(Exception):
    """The error that no LXC guest can run with this machine's cgroups; why, and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Mount:
    target: pathlib.Path
    type: str
    source: str
    options: frozenset[str]
    super_options: frozenset[str]


def mounts(mountinfo: str) -> list[Mount]:
    """Return the mounts in the text of a /proc/<pid>/mountinfo (proc_pid_mountinfo(5))."""
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
    """Return the cgroup version that this machine uses, from the text of a mountinfo."""
    v1 = [mount for mount in mounts(mountinfo) if mount.type == "cgroup"]
    v2 = [mount for mount in mounts(mountinfo) if mount.type == "cgroup2"]
    if not v1 and not v2:
        raise Unservable(
            "no cgroup filesystem is mounted: mount one, for example by "
            "`mount -t cgroup2 none /sys/fs/cgroup`"
        )
    for mount in v1 or v2:
        if "ro" in mount.options:
            raise Unservable(
                f"{mount.target} is mounted read-only, as in a container without rights over its "
                f"cgroups, so no guest can have one: `mount -o remount,rw {mount.target}` as root "
                f"of the machine"
            )
    if not v1:
        return Layout.V2
    present = frozenset[str]().union(*(mount.super_options for mount in v1))
    missing = [name for name in _NEEDED if name not in present]
    if missing:
        raise Unservable(
            f"cgroup v1 lacks the controllers {', '.join(missing)}, without which libvirt starts "
            f"no LXC guest. Mount them below /sys/fs/cgroup (`mount -t cgroup -o {missing[0]} none "
            f"...`), or boot with cgroup v2 only"
        )
    return Layout.HYBRID if v2 else Layout.V1


def hierarchies(mountinfo: str) -> list[pathlib.Path]:
    """Return the mount point of every cgroup hierarchy in the text of a mountinfo."""
    return [mount.target for mount in mounts(mountinfo) if mount.type in ("cgroup", "cgroup2")]


def procs_files(mountinfo: str, membership: str) -> list[pathlib.Path]:
    """Return the path of ``cgroup.procs`` of each control group that a process is in.

    :param mountinfo: the text of the mountinfo of the process that will open the paths
    :param membership: the text of /proc/<pid>/cgroup of the process (cgroups(7))
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
    """The control group of the LXC guest *domain* in one hierarchy."""

    path: pathlib.Path
    controller_pid: int
    domain: str

    @property
    def pids(self) -> list[int]:
        files = self.path.rglob("cgroup.procs")
        return sorted({int(pid) for file in files for pid in file.read_text().split()})


def guest_groups(hierarchy: pathlib.Path) -> list[GuestGroup]:
    """Return the control groups of LXC guests in the hierarchy mounted at *hierarchy*.

    libvirt creates them in ``machine``, or in ``machine.slice`` if it uses systemd.
    """
    groups = []
    for parent in hierarchy.glob("machine*"):
        for path in parent.glob("lxc-*.libvirt-lxc"):
            match = _MACHINE.fullmatch(path.name)
            if match:
                groups.append(GuestGroup(path, int(match[1]), match[2]))
    return sorted(groups)


def all_guest_groups() -> list[GuestGroup]:
    """Return the control groups of LXC guests in every hierarchy of this machine."""
    mountinfo = pathlib.Path("/proc/self/mountinfo").read_text()
    return [group for hierarchy in hierarchies(mountinfo) for group in guest_groups(hierarchy)]


def remove(group: GuestGroup) -> None:
    """Remove the control group with all groups below it."""
    below = [path for path in group.path.rglob("*") if path.is_dir()]
    for path in sorted(below, reverse=True):
        path.rmdir()
    group.path.rmdir()
