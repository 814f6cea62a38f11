# SPDX-License-Identifier: Apache-2.0
"""The delivery of vGPUs as mediated devices, which the card's driver makes and removes.

This module checks neither whether guests can have a type, because the driver offers no others, nor
whether a guest can be live migrated, because libvirt decides that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nova_gpu.core.vgpu.vgpu import Kind, Parent, Slot, device_uuid
from nova_gpu.host.vgpu import mdev
from nova_gpu.virt.delivery import service
from nova_gpu.virt.delivery.hostdev_parts import HostdevParts

if TYPE_CHECKING:
    from nova.virt.libvirt import config as vconfig


class MediatedDevices(HostdevParts):
    """The delivery of mediated devices, made at PCI functions that have mdev types."""

    kind = Kind.MEDIATED
    words = "a mediated device"

    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        return mdev.is_there(device_uuid(instance_uuid, slot), self._roots)

    def _hostdev(self, instance_uuid: str, slot: Slot) -> vconfig.LibvirtConfigGuestHostdev:
        return service.guest_config.GuestMediatedDevice(instance_uuid, slot)

    def moved(self, data: Any, instance_uuid: str, old: Slot, new: Slot) -> None:
        data.target_mdevs[device_uuid(instance_uuid, old)] = device_uuid(instance_uuid, new)
