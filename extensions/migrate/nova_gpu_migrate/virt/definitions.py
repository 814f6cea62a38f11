# SPDX-License-Identifier: Apache-2.0
"""libvirt's persistent definitions of mediated devices, which recent releases of Nova write.

libvirt makes a defined device when the host boots, and stock Nova when nova-compute starts.
nova-gpu makes its own, so one that is still defined would come back after its guest.
What libvirt refuses raises NotTakenOver.

"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import libvirt
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import host as libvirt_host
from nova.virt.libvirt import utils as libvirt_utils

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu_migrate.core.stock_holding import NotTakenOver

_REMEDY = "run this command as root, while libvirt's daemon for node devices runs"


def node_device(function: PciAddress) -> str:
    """Return libvirt's name of a PCI function: ``pci_0000_3b_00_0``."""
    return "pci_" + str(function).replace(":", "_").replace(".", "_")


def remove(host: libvirt_host.Host, instance_uuid: str, slots: Collection[Slot]) -> None:
    """Remove the definitions of the instance's mediated devices, which stay as they are.

    :param host: a connection that may write
    """
    try:
        for device in _defined(host, instance_uuid, slots):
            device.undefine()
    except libvirt.libvirtError as error:
        reason = f"libvirt still defines its mediated devices: {error}"
        raise NotTakenOver(instance_uuid, reason, _REMEDY) from error


def are_there(host: libvirt_host.Host, instance_uuid: str, slots: Collection[Slot]) -> bool:
    """Return whether libvirt defines any of the instance's mediated devices."""
    try:
        return any(True for _ in _defined(host, instance_uuid, slots))
    except libvirt.libvirtError as error:
        reason = f"libvirt does not tell whether it defines its mediated devices: {error}"
        raise NotTakenOver(instance_uuid, reason, _REMEDY) from error


def _defined(
    host: libvirt_host.Host, instance_uuid: str, slots: Collection[Slot]
) -> Iterator[libvirt.virNodeDevice]:
    uuids = {device_uuid(instance_uuid, slot) for slot in slots}
    for name in host.list_mediated_devices() if uuids else ():
        if libvirt_utils.mdev_name2uuid(name) in uuids:
            device = host.device_lookup_by_name(name)
            if device.isPersistent():
                yield device


def add(host: libvirt_host.Host, instance_uuid: str, slots: Iterable[Slot]) -> None:
    """Define the instance's mediated devices as Nova does (``LibvirtDriver._create_mdev``).

    Do nothing for a release of Nova that defines none: it makes them again from the domains.

    :param host: a connection that may write
    """
    if not hasattr(host, "device_define"):
        return
    try:
        for slot in slots:
            description = vconfig.LibvirtConfigNodeDevice()
            description.parent = node_device(slot.parent)
            description.mdev_information = vconfig.LibvirtConfigNodeDeviceMdevInformation()
            description.mdev_information.type = slot.type_id
            description.mdev_information.uuid = device_uuid(instance_uuid, slot)
            device = host.device_define(description)
            host.device_set_autostart(device, autostart=True)
    except libvirt.libvirtError as error:
        reason = f"libvirt does not define its mediated devices: {error}"
        raise NotTakenOver(instance_uuid, reason, _REMEDY) from error
