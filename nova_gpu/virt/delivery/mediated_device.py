# SPDX-License-Identifier: Apache-2.0
"""Parts of cards as mediated devices, which the card's driver makes and removes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import Kind, Parent, Slot, device_uuid
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import mdev
from nova_gpu.virt.delivery.delivery import Delivery, Given
from nova_gpu.virt.delivery.pci_passthrough import UNSAVED

if TYPE_CHECKING:
    from nova import objects
    from nova.virt.libvirt import config as vconfig


class MediatedDevices:
    """The :class:`nova_gpu.virt.delivery.delivery.Parts` of functions with mdev types"""

    kind = Kind.MEDIATED
    words = "a mediated device"
    refused = UNSAVED

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    @property
    def delivery(self) -> Delivery:
        return self

    # What the host has

    def obstacle(self, card: GPU, functions: Sequence[PciAddress]) -> str | None:
        return None  # its driver makes them only where guests can have them

    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        return mdev.is_there(device_uuid(instance_uuid, slot), self._roots)

    # What is done

    def dividers(self) -> Mapping[str, Callable[[str], object]]:
        return {}

    def make_ready(self, instance: objects.Instance, given: Sequence[Given]) -> None:
        pass

    def make(self, slot: Slot, instance_uuid: str) -> None:
        # Only now: privsep takes half a second, and the commands make nothing.
        import nova_gpu.privsep.vgpu

        nova_gpu.privsep.vgpu.make(str(slot), instance_uuid)

    def render(
        self,
        instance: objects.Instance,
        guest: vconfig.LibvirtConfigGuest,
        given: Sequence[Given],
    ) -> None:
        from nova_gpu.virt.delivery import guest_vgpus

        slots = [each for each in given if isinstance(each, Slot)]
        own = {slot: guest_vgpus.GuestMediatedDevice(instance.uuid, slot) for slot in slots}
        guest_vgpus.add_vgpus(guest, own)

    def clean(self, slot: Slot) -> bool:
        return False  # nothing stays

    def give_back(
        self, slot: Slot, instance_uuid: str | None, clean: Callable[[Slot], None]
    ) -> None:
        import nova_gpu.privsep.vgpu

        if instance_uuid is not None:
            nova_gpu.privsep.vgpu.remove(str(slot), instance_uuid)

    # While the guest runs

    def stateless(self, slot: Slot, *, is_running: bool) -> str | None:
        return None  # libvirt says it, when it is told to move the guest

    def moved(self, data: Any, instance_uuid: str, old: Slot, new: Slot) -> None:
        data.target_mdevs[device_uuid(instance_uuid, old)] = device_uuid(instance_uuid, new)
