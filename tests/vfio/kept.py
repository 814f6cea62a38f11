# SPDX-License-Identifier: Apache-2.0
"""All that libvirt, the kernel and nova-compute's folders keep in the VM, and how guests are."""

from __future__ import annotations

import itertools
import os
import pathlib
import shutil
import stat
from collections.abc import Iterator

import libvirt

from tests.vfio import host, place

_DEVICES = pathlib.Path("/sys/bus/pci/devices")
_MEDIATED = pathlib.Path("/sys/bus/mdev/devices")
_CONSOLE = "console.log"
# What nova-compute is told and what it says, and what a guest says
_NOT_KEPT = {place.CONFIGURATION.name, "command.log", _CONSOLE, "locks"}
_LARGEST = 1 << 16


def kept() -> dict[str, str]:
    """Return the values, by place."""
    connection = libvirt.open("qemu:///system")
    try:
        return dict(itertools.chain(_of_libvirt(connection), _of_kernel(), _of_files()))
    finally:
        connection.close()


def guests() -> dict[str, tuple[str, ...]]:
    """Return how each guest is, by the uuid of its instance.

    That is libvirt's description, state and number of it, QEMU's process with what it has open of
    VFIO, and all that the guest has said.
    """
    connection = libvirt.openReadOnly("qemu:///system")
    try:
        return {
            domain.UUIDString(): tuple(_of_guest(domain)) for domain in connection.listAllDomains(0)
        }
    finally:
        connection.close()


def forget_nova_gpu() -> None:
    """Remove what nova-gpu has written for itself."""
    for path in place.STATE.glob("gpu-*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_mediated() -> None:
    """Remove what stock Nova leaves of the mediated devices of its guests."""
    for name in host.virsh("nodedev-list", "--cap", "mdev", "--all").split():
        words = host.virsh("nodedev-info", name)
        if "Active:         yes" in words:
            host.virsh("nodedev-destroy", name)
        if "Persistent:     yes" in words:
            host.virsh("nodedev-undefine", name)


def _of_guest(domain: libvirt.virDomain) -> Iterator[str]:
    yield domain.XMLDesc(0)
    yield repr(domain.state())
    yield repr(domain.ID())
    if domain.isActive():
        yield repr(host.guest_process(domain.name()))
    yield host.read(str(place.INSTANCES / domain.UUIDString() / _CONSOLE))


def _of_libvirt(connection: libvirt.virConnect) -> Iterator[tuple[str, str]]:
    for domain in connection.listAllDomains(0):
        spot = f"domain[{domain.UUIDString()}]"
        yield f"{spot}.state", repr(domain.state())
        yield f"{spot}.id", repr(domain.ID())
        yield f"{spot}.xml", domain.XMLDesc(0)
        yield f"{spot}.persistent", domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    flags = (
        libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV,
        libvirt.VIR_CONNECT_LIST_NODE_DEVICES_ACTIVE,
        libvirt.VIR_CONNECT_LIST_NODE_DEVICES_INACTIVE,
    )
    for device in connection.listAllDevices(sum(flags)):
        spot = f"mdev[{device.name()}]"
        yield f"{spot}.active", repr(device.isActive())
        yield f"{spot}.persistent", repr(device.isPersistent())
        yield f"{spot}.autostart", repr(device.autostart() if device.isPersistent() else 0)


def _of_kernel() -> Iterator[tuple[str, str]]:
    for folder in sorted(_DEVICES.iterdir()):
        spot = f"pci[{folder.name}]"
        yield f"{spot}.driver", repr(host.driver(folder.name))
        yield f"{spot}.driver_override", (folder / "driver_override").read_text().strip()
    for folder in sorted(_MEDIATED.glob("*")):
        yield f"sysfs mdev[{folder.name}].type", os.path.basename(os.readlink(folder / "mdev_type"))
    yield "vfio.groups", repr(host.open_groups())


def _of_files() -> Iterator[tuple[str, str]]:
    for folder, names, files in os.walk(place.STATE):
        names[:] = [name for name in names if name not in _NOT_KEPT]
        for path in (pathlib.Path(folder, name) for name in (*names, *files)):
            if path.name in _NOT_KEPT:
                continue
            status = path.lstat()
            yield f"{path} (mode)", stat.filemode(status.st_mode)
            if stat.S_ISREG(status.st_mode):
                is_small = status.st_size < _LARGEST
                yield str(path), repr(path.read_bytes()) if is_small else str(status.st_size)
