# SPDX-License-Identifier: Apache-2.0
"""The delivery of vGPUs as libvirt hostdevs: the base classes.

:class:`HostdevParts` is common to mediated devices and virtual functions, :class:`VirtualFunctions`
to virtual functions with and without a vGPU type.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import nova_gpu.privsep
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import Parent, Slot
from nova_gpu.host.pci import iommu
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import passthrough
from nova_gpu.virt.delivery import service
from nova_gpu.virt.delivery.delivery import Delivery, Grant, Operation
from nova_gpu.virt.delivery.pci_aliases import DeviceSpec
from nova_gpu.virt.delivery.pci_passthrough import UNSAVED

if TYPE_CHECKING:
    from nova import objects
    from nova.virt.libvirt import config as vconfig

    from nova_gpu.core.flavor.request import FlavorRequest
    from nova_gpu.core.guest.devices import GuestDevice


class HostdevParts(Delivery):
    """A delivery of vGPUs that are made before a guest starts, and removed after its end."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def unsupported(self, operation: Operation, *, has_gpus: bool = True) -> str | None:
        return UNSAVED.get(operation) if has_gpus else None

    def prepare(self, grant: Grant, instance_uuid: str) -> None:
        nova_gpu.privsep.vgpu.make(str(grant), instance_uuid)

    def render(
        self,
        instance: objects.Instance,
        request: FlavorRequest,
        guest: vconfig.LibvirtConfigGuest,
        grants: Sequence[Grant],
    ) -> list[GuestDevice]:
        slots = [grant for grant in grants if isinstance(grant, Slot)]
        hostdevs = {slot: self._hostdev(instance.uuid, slot) for slot in slots}
        service.guest_config.add_vgpus(guest, hostdevs)
        return []

    @abc.abstractmethod
    def _hostdev(self, instance_uuid: str, slot: Slot) -> vconfig.LibvirtConfigGuestHostdev:
        """Return the hostdev element of the instance's vGPU at *slot*."""

    def release(self, slot: Slot, instance_uuid: str | None, clean: Callable[[Slot], None]) -> None:
        if instance_uuid is not None:
            nova_gpu.privsep.vgpu.remove(str(slot), instance_uuid)

    @abc.abstractmethod
    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool: ...

    # While the guest runs

    def stateless(self, slot: Slot, *, is_running: bool) -> str | None:
        """Return why the state of the vGPU at *slot* cannot be saved, for a live migration.

        Return ``None`` if no obstacle is known.

        :param is_running: whether a guest has the vGPU now; if not, libvirt may bind a more capable
            driver for the guest
        """
        return None

    @abc.abstractmethod
    def moved(self, data: Any, instance_uuid: str, old: Slot, new: Slot) -> None:
        """Write into Nova's migrate data that the vGPU at *new* replaces *old* at the destination.

        :param data: a LibvirtLiveMigrateData
        """


class VirtualFunctions(HostdevParts):
    """A delivery of SR-IOV virtual functions, with or without a vGPU type.

    ``managed``: whether libvirt binds the function to vfio-pci while the domain runs.

    :param libvirt_version: return the version of libvirt as one number (10000000 is 10.0.0), or
        ``None`` if it is unknown
    """

    managed: bool

    def __init__(
        self,
        roots: Roots,
        device_spec: DeviceSpec,
        libvirt_version: Callable[[], int | None] = lambda: None,
    ) -> None:
        super().__init__(roots)
        self._device_spec = device_spec
        self._libvirt_version = libvirt_version

    # State of the host

    def obstacle(self, card: GPU, functions: Sequence[PciAddress] = ()) -> str | None:
        if reason := passthrough.without_iommu(functions[:1], self._roots):
            return reason
        for function in functions:
            if reason := self._obstacle_of(function):
                return reason
        return self._device_spec.obstacle(functions, self._roots)

    def _obstacle_of(self, function: PciAddress) -> str | None:
        return None

    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        """Return whether the function has the slot's vGPU type; another instance may have it."""
        return parent is not None and slot.type_id in parent.made

    # Actions

    def render(
        self,
        instance: objects.Instance,
        request: FlavorRequest,
        guest: vconfig.LibvirtConfigGuest,
        grants: Sequence[Grant],
    ) -> list[GuestDevice]:
        service.guest_config.limit_bits(guest, self._roots, self._libvirt_version())
        return super().render(instance, request, guest, grants)

    def _hostdev(self, instance_uuid: str, slot: Slot) -> vconfig.LibvirtConfigGuestHostdev:
        return service.guest_config.GuestVirtualFunction(slot.parent, managed=self.managed)

    # While the guest runs

    def stateless(self, slot: Slot, *, is_running: bool) -> str | None:
        try:
            driver = iommu.driver(slot.parent, self._roots)
        except OSError as error:
            return f"the driver of {slot.parent} cannot be read: {error}"
        if driver == iommu.DRIVER or (is_running and driver is None):
            return (
                f"{driver or 'no driver'}, which has vGPU {slot}, cannot save its state; a "
                "vendor's variant of vfio-pci may"
            )
        if "pci_dev_map_src_dst" not in service.migrate_data.LibvirtLiveMigrateData.fields:
            return f"Nova before 2025.1 moves no virtual function of a running guest, as {slot} is"
        return None

    def moved(self, data: Any, instance_uuid: str, old: Slot, new: Slot) -> None:
        data.pci_dev_map_src_dst[str(old.parent)] = str(new.parent)
