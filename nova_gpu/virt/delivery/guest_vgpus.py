# SPDX-License-Identifier: Apache-2.0
"""A KVM guest's vGPUs in libvirt's terms: mediated devices, and virtual functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nova.virt.libvirt import config as vconfig

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt.delivery import guest_metadata


class GuestVirtualFunction(vconfig.LibvirtConfigGuestHostdevPCI):  # type: ignore[misc]
    """:param managed: whether libvirt binds it to vfio-pci as long as the domain runs; else it
    stays with the driver that it has on the host
    """

    def __init__(self, address: PciAddress, *, managed: bool) -> None:
        super().__init__()
        self.managed = "yes" if managed else "no"
        self.domain, self.bus = f"{address.domain:04x}", f"{address.bus:02x}"
        self.slot, self.function = f"{address.slot:02x}", f"{address.function:x}"


class GuestMediatedDevice(vconfig.LibvirtConfigGuestHostdevMDEV):  # type: ignore[misc]
    def __init__(self, instance_uuid: str, slot: Slot) -> None:
        super().__init__()
        self.uuid = device_uuid(instance_uuid, slot)


def uuids(instance_uuid: str, slots: Collection[Slot]) -> frozenset[str]:
    """The UUIDs of the mediated devices that the instance has at *slots*"""
    return frozenset(device_uuid(instance_uuid, slot) for slot in slots)


def add_vgpus(
    guest: vconfig.LibvirtConfigGuest,
    devices: Mapping[Slot, vconfig.LibvirtConfigGuestHostdev],
) -> None:
    """Puts *devices* behind Nova's, where libvirt finds each a place.

    The uuid does not say which slot it is, nor does an address; the metadata does, beside whole
    cards of the guest.
    """
    named = [each for each in guest.metadata if isinstance(each, guest_metadata.GuestMetaGPUs)]
    if not named:
        named = [guest_metadata.GuestMetaGPUs(())]
        guest.metadata += named
    named[0].addresses += tuple(devices)
    for device in devices.values():
        guest.add_device(device)
