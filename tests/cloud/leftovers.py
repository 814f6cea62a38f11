# SPDX-License-Identifier: Apache-2.0
"""What is there because of an instance, although there is none any more."""

from __future__ import annotations

import pathlib
import stat
from collections.abc import Iterable, Iterator

from lab.cloud import cgroups
from lab.cloud import nodes as lab_nodes

_MOUNTINFO = pathlib.Path("/proc/self/mountinfo")


def quarantined(state: pathlib.Path) -> Iterator[str]:
    """Files about cards that are kept from instances; a test that wants one takes it away."""
    for path in sorted((state / "gpu-quarantine").glob("*")):
        yield f"quarantine {path.name}: {path.read_text(errors='replace').strip()}"


def guest_groups() -> Iterator[str]:
    """The control groups of all guests of the machine, anybody's"""
    for hierarchy in cgroups.hierarchies(_MOUNTINFO.read_text()):
        for kind in ("lxc", "qemu"):
            for path in sorted(hierarchy.glob(f"machine*/*{kind}*")):
                yield f"cgroup {path}"


def remove_empty_groups(left: Iterable[str]) -> Iterator[str]:
    """Those of what is *left* that are control groups without a process, which are gone then.

    libvirtd 9.0 forgets one now and then on a busy machine. Nothing can be reached by it, and
    nova-compute has no hand in it: the groups are libvirt's alone.
    """
    for leftover in sorted(left):
        kind, _, path = leftover.partition(" ")
        group = pathlib.Path(path)
        if kind == "cgroup" and not any(f.read_text() for f in group.rglob("cgroup.procs")):
            for folder in sorted((f.parent for f in group.rglob("cgroup.procs")), reverse=True):
                folder.rmdir()
            yield leftover


def nodes(dev: pathlib.Path = pathlib.Path("/dev")) -> Iterator[str]:
    """The device nodes of cards and of vfio's groups, and who may open them"""
    for pattern in (*lab_nodes.REAL_GPU_NODES, "vfio/*"):
        for path in sorted(dev.glob(pattern)):
            yield f"node {path} {stat.filemode(path.stat().st_mode)}"
