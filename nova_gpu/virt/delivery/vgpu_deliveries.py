# SPDX-License-Identifier: Apache-2.0
"""The deliveries of vGPUs as libvirt hostdevs, one class for each kind of vGPU.

A new kind is a member of :class:`nova_gpu.core.vgpu.vgpu.VGPUKind`, a class here, and its place in
:func:`of_machines`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oslo_log import log as logging
from oslo_utils import versionutils

import nova_gpu.privsep
from nova_gpu.core import boundary
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import Parent, Slot, VGPUKind, device_uuid
from nova_gpu.host.pci import iommu
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import passthrough
from nova_gpu.host.vgpu import gim, mdev, virtual_functions
from nova_gpu.virt.delivery import service
from nova_gpu.virt.delivery.delivery import Delivery, Grant, Operation
from nova_gpu.virt.delivery.pci_aliases import DeviceSpec
from nova_gpu.virt.delivery.pci_passthrough import UNSAVED

if TYPE_CHECKING:
    from nova import objects
    from nova.virt.libvirt import config as vconfig

    from nova_gpu.core.flavor.request import FlavorRequest
    from nova_gpu.core.guest.devices import GuestDevice


LOG = logging.getLogger(__name__)

# Since this version libvirt accepts a function with managed='no' whatever VFIO driver it is bound
# to (libvirt's NEWS).
MIN_LIBVIRT = (10, 0, 0)


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
        service.domain_xml.add_vgpus(guest, hostdevs)
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
        """Write into a LibvirtLiveMigrateData that the vGPU at *new* replaces *old* there."""


class MediatedDevices(HostdevParts):
    """The delivery of mediated devices, made at PCI functions that have mdev types.

    It checks neither whether guests can have a type, because the driver offers no others, nor
    whether a guest can be live migrated, because libvirt decides that.
    """

    kind = VGPUKind.MEDIATED
    part_name = "a mediated device"

    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        return mdev.is_there(device_uuid(instance_uuid, slot), self._roots)

    def _hostdev(self, instance_uuid: str, slot: Slot) -> vconfig.LibvirtConfigGuestHostdev:
        return service.domain_xml.GuestMediatedDevice(instance_uuid, slot)

    def moved(self, data: Any, instance_uuid: str, old: Slot, new: Slot) -> None:
        data.target_mdevs[device_uuid(instance_uuid, old)] = device_uuid(instance_uuid, new)


class VirtualFunctions(HostdevParts):
    """A delivery of SR-IOV virtual functions, with or without a vGPU type.

    ``managed``: whether libvirt binds the function to vfio-pci while the domain runs.
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
        service.domain_xml.limit_bits(guest, self._roots, self._libvirt_version())
        return super().render(instance, request, guest, grants)

    def _hostdev(self, instance_uuid: str, slot: Slot) -> vconfig.LibvirtConfigGuestHostdev:
        return service.domain_xml.GuestVirtualFunction(slot.parent, managed=self.managed)

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


class TypedFunctions(VirtualFunctions):
    """The delivery of virtual functions that NVIDIA's host driver has given a vGPU type."""

    kind = VGPUKind.TYPED
    part_name = "a virtual function with a type"
    managed = False  # the function stays with the driver that set its type

    def obstacle(self, card: GPU, functions: Sequence[PciAddress] = ()) -> str | None:
        return (
            self._too_old()
            or virtual_functions.typed_obstacle(functions, self._roots)
            or super().obstacle(card, functions)
        )

    def _too_old(self) -> str | None:
        """Return why libvirt cannot give guests a function bound to NVIDIA's driver, else ``None``.

        With an older libvirt a guest's start fails with "must be manually detached from the host".
        """
        libvirt, wanted = self._libvirt_version(), ".".join(map(str, MIN_LIBVIRT))
        if libvirt is None:
            return (
                f"its virtual functions need libvirt {wanted} or newer, and this host's libvirt "
                "does not report its version; check that it runs"
            )
        if libvirt < versionutils.convert_version_to_int(MIN_LIBVIRT):
            version = versionutils.convert_version_to_str(libvirt)
            return (
                f"libvirt {version} starts no guest with virtual functions that stay with NVIDIA's "
                f"driver; install {wanted} or newer"
            )
        return None


class PlainFunctions(VirtualFunctions):
    """The delivery of virtual functions that have no vGPU type and no driver on the host."""

    kind = VGPUKind.PLAIN
    part_name = "a virtual function as it is"
    managed = True

    def _obstacle_of(self, function: PciAddress) -> str | None:
        return virtual_functions.obstacle(function, self._roots)

    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        return parent is not None


def of_machines(
    roots: Roots, device_spec: DeviceSpec, libvirt_version: Callable[[], int | None]
) -> list[HostdevParts]:
    """Return the deliveries of the parts of cards that a KVM host may give, one for each kind."""
    return [
        MediatedDevices(roots),
        TypedFunctions(roots, device_spec, libvirt_version),
        PlainFunctions(roots, device_spec, libvirt_version),
    ]


def divide(card: str, number: int) -> None:
    """Enable *number* virtual functions of *card*, as ``[gpu]virtual_functions`` states."""
    nova_gpu.privsep.vgpu.enable_functions(card, number=number)


def modes(
    cards: Iterable[GPU], roots: Roots, before: Mapping[PciAddress, str]
) -> Mapping[PciAddress, str]:
    """Return the partition modes of those *cards* that AMD's module gim has.

    :param before: the last result, which stays if the files cannot be read
    """
    addresses = [str(card.address) for card in cards if gim.shows_modes(card.address, roots)]
    if not addresses:
        return {}
    try:
        with boundary.crossed():
            answer = nova_gpu.privsep.vgpu.partition_modes(addresses)
    except boundary.Failure as error:
        LOG.warning("Cannot read the partition modes of AMD's cards, keep the last: %s", error)
        return before
    return {PciAddress.parse(address): mode for address, mode in answer.items()}
