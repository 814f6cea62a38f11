# SPDX-License-Identifier: Apache-2.0
"""Devices of an instance: a whole card, or one vGPU of a card."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from nova_gpu.core import names
from nova_gpu.core.model import DeliveryMode, GroupKey, PciAddress
from nova_gpu.core.vgpu.vgpu import Slot

Device: TypeAlias = PciAddress | Slot


@functools.lru_cache(maxsize=1 << 15)  # the same few thousand, at every claim
def parse(text: str) -> Device:
    """Parse ``0000:3b:00.0`` or ``0000:3b:00.0/nvidia-35/0``, the reverse of ``str()``."""
    return Slot.parse(text) if "/" in text else PciAddress.parse(text)


def mode(device: Device, virt_type: str) -> DeliveryMode:
    """Return the delivery mode of *device* on a host with this ``[libvirt]virt_type``."""
    return DeliveryMode.VGPU if isinstance(device, Slot) else DeliveryMode.of_whole_cards(virt_type)


def resource_class(device: Device) -> str:
    return names.RESOURCE_CLASS if isinstance(device, PciAddress) else names.VGPU_RESOURCE_CLASS


def resource_class_of(key: GroupKey) -> str:
    return resource_class_in(in_parts=key.is_in_parts)


def resource_class_in(*, in_parts: bool) -> str:
    """Return the resource class of vGPUs if *in_parts*, else that of whole cards."""
    return names.VGPU_RESOURCE_CLASS if in_parts else names.RESOURCE_CLASS


def cards(devices: Iterable[Device]) -> frozenset[PciAddress]:
    return frozenset(device for device in devices if isinstance(device, PciAddress))


def slots(devices: Iterable[Device]) -> frozenset[Slot]:
    return frozenset(device for device in devices if isinstance(device, Slot))


def vgpu_type(device: Device) -> str | None:
    return device.type_id if isinstance(device, Slot) else None


def card_of(function: PciAddress, cards: Iterable[PciAddress]) -> PciAddress | None:
    """Return the card in *cards* that the virtual function *function* belongs to, or ``None``.

    The card is derived from the address, so the function need not exist now. The kernel numbers the
    virtual functions of a card after the card (``pci_iov_virtfn_bus`` in its drivers/pci/iov.c),
    those of a GPU on the same bus or the next one.
    """
    near = (card for card in cards if card.domain == function.domain and card <= function)
    nearest = max(near, default=None)
    return nearest if nearest is not None and function.bus - nearest.bus <= 1 else None


def function(device: Device) -> PciAddress:
    """Return the PCI function of *device*: the card's own, or the one that the vGPU is made at."""
    return device.parent if isinstance(device, Slot) else device


def users(devices_by_uuid: Mapping[str, Collection[Device]]) -> dict[Device, tuple[str, ...]]:
    """Map each device that guests have to the UUIDs of these guests."""
    uuids: dict[Device, tuple[str, ...]] = {}
    for uuid, devices in sorted(devices_by_uuid.items()):
        for device in devices:
            uuids[device] = (*uuids.get(device, ()), uuid)
    return uuids


def shared(devices_by_uuid: Mapping[str, Collection[Device]]) -> dict[Device, tuple[str, ...]]:
    """Map each device that several guests have to the UUIDs of these guests."""
    uuids = users(devices_by_uuid)
    several = (device for device, guests in uuids.items() if len(guests) > 1)
    return {device: uuids[device] for device in sorted(several, key=str)}


def clashing(wanted: Collection[Device], taken: Collection[Device]) -> frozenset[Device]:
    """Return the devices of *wanted* that no guest can have while other guests have *taken*.

    A PCI function is given either whole, or as vGPUs at different slots. Two slots that differ only
    in the profile of a MIG instance are the same device.
    """
    places = {device.place for device in taken if isinstance(device, Slot)}
    whole = {device for device in taken if isinstance(device, PciAddress)}
    divided = {device.parent for device in taken if isinstance(device, Slot)}
    return frozenset(
        device
        for device in wanted
        if (
            device.place in places or device.parent in whole
            if isinstance(device, Slot)
            else device in whole or device in divided
        )
    )
