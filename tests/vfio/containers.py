# SPDX-License-Identifier: Apache-2.0
"""A libvirtd for containers in the VM, beside the one with the QEMU guests, and pretend GPUs."""

from __future__ import annotations

import os
import pathlib
import shutil

from lab.cloud import guest, image, libvirtd, nodes
from tests.fixtures import hosts
from tests.lxc import place as guests
from tests.vfio import place

_MACHINE = "fermi-8"

_host: hosts.Host
_libvirtd = libvirtd.PrivateLibvirtd(place.CONTAINERS, nodes.machine() + nodes.pretend_nvidia())


def begin() -> tuple[int, dict[str, str]]:
    """Starts it: its pid, and where nova-compute finds the host's GPUs, by the names of options."""
    global _host
    place.CONTAINERS.mkdir(mode=0o711)
    image.build(place.CONTAINERS_IMAGE)
    _host = hosts.build(_MACHINE, place.CONTAINERS / "host")
    roots = _host.roots
    _libvirtd.start()
    return _libvirtd.pid, {"sysfs_root": str(roots.sysfs), "proc_root": str(roots.proc)}


def end() -> list[str]:
    """What is left of it, in words"""
    left = _libvirtd.stop()
    shutil.rmtree(place.CONTAINERS)
    return left


def exchange() -> None:
    """NVIDIA's driver is loaded anew, and the first two cards have each other's nodes."""
    _host.renumber(dict(zip(guests.GPUS[:2], guests.MINORS[1::-1], strict=True)))


def opened(domain: str) -> list[int]:
    """The errno of opening each node of the first two cards, from the guest's control groups"""
    return guest.open_from_cgroup(_libvirtd, domain, [guests.node(0), guests.node(1)])


def attempts(domain: str) -> list[guest.Attempt]:
    """The ways of the guest's root to the cards that it does not have: all but the first one."""
    others = [guests.node(gpu) for gpu in range(1, len(guests.GPUS))]
    return [
        *guest.make_nodes(_libvirtd, domain, others),
        *guest.escapes(_libvirtd, domain, others[0]),
    ]


def enter(pid: int) -> None:
    """This process has the mounts of *pid*'s from now on. It may have one thread only."""
    folder = pathlib.Path.cwd()
    guest.enter(pid, "mnt")
    os.chdir(folder)
