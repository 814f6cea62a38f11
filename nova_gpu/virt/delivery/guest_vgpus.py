# SPDX-License-Identifier: Apache-2.0
"""A KVM guest's vGPUs in libvirt's terms: mediated devices, and virtual functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nova.virt.libvirt import config as vconfig

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Kind, Slot, device_uuid
from nova_gpu.virt.delivery import guest_metadata


class GuestVirtualFunction(vconfig.LibvirtConfigGuestHostdevPCI):  # type: ignore[misc]
    """One with a type stays with the driver it has on the host, which gave it that. For any other
    libvirt has vfio-pci, as long as the domain runs."""

    def __init__(self, address: PciAddress, kind: Kind) -> None:
        super().__init__()
        self.managed = "yes" if kind is Kind.PLAIN else "no"
        self.domain, self.bus = f"{address.domain:04x}", f"{address.bus:02x}"
        self.slot, self.function = f"{address.slot:02x}", f"{address.function:x}"


def uuids(instance_uuid: str, slots: Collection[Slot]) -> frozenset[str]:
    """The UUIDs of the mediated devices that the instance has at *slots*"""
    return frozenset(device_uuid(instance_uuid, slot) for slot in slots)


def add_vgpus(
    guest: vconfig.LibvirtConfigGuest,
    instance_uuid: str,
    kinds: Mapping[Slot, Kind],
) -> None:
    """Puts them behind Nova's devices, where libvirt finds each a place.

    The uuid does not say which slot it is, nor does an address; the metadata does, beside whole
    cards of the guest.

    :param kinds: what the vGPU at each of the slots is made of
    """
    named = [each for each in guest.metadata if isinstance(each, guest_metadata.GuestMetaGPUs)]
    if not named:
        named = [guest_metadata.GuestMetaGPUs(())]
        guest.metadata += named
    named[0].addresses += tuple(kinds)
    for slot, kind in kinds.items():
        if kind is not Kind.MEDIATED:
            guest.add_device(GuestVirtualFunction(slot.parent, kind))
            continue
        mediated = vconfig.LibvirtConfigGuestHostdevMDEV()
        mediated.uuid = device_uuid(instance_uuid, slot)
        guest.add_device(mediated)
