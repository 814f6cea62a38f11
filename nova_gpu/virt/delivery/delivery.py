# SPDX-License-Identifier: Apache-2.0
"""The interface of a delivery: a way in which a host gives one kind of device to guests.

Examples are PCI passthrough of whole cards, device nodes for containers and mediated devices. The
commands also use it, to list a host's devices and why guests cannot get some. So a module of a
delivery imports slow modules that only guests need through :mod:`nova_gpu.virt.delivery.service`.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from nova_gpu.core.guest import devices as guest_devices
from nova_gpu.core.guest.devices import GuestDevice
from nova_gpu.core.guest.tree import GuestPlace
from nova_gpu.core.model import GPU, DeliveryMode, PciAddress
from nova_gpu.core.vgpu.vgpu import Parent, Slot, VGPUKind
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

if TYPE_CHECKING:
    from nova import objects
    from nova.virt.libvirt import config as vconfig

    from nova_gpu.core.flavor.request import FlavorRequest
    from nova_gpu.virt import threads

# A device that an instance is granted: a whole card, or the slot of one vGPU or MIG instance.
Grant: TypeAlias = GPU | Slot


class Operation(enum.Enum):
    """An operation of Nova that is unsupported for some guests with GPUs."""

    SUSPEND = enum.auto()
    # The suspend inside a snapshot, on a host that cannot take a snapshot of a running guest
    SNAPSHOT = enum.auto()
    RESCUE = enum.auto()
    LIVE_MIGRATION = enum.auto()


class Delivery(abc.ABC):
    """A way in which guests of this host get one kind of device.

    A host has one delivery of whole cards, and may have several of parts of cards: mediated
    devices, virtual functions or MIG instances. Every delivery implements :meth:`render`, and one
    of parts also :meth:`is_there`. The other methods do nothing unless a delivery overrides them.

    Attributes of a delivery of whole cards. ``shares_driver``: the host's driver keeps driving a
    card that a guest has, so NVML may open the card, and the card stays divided. If
    ``needs_hard_reboot``, a domain that starts from its old definition may reach another card.
    ``share``: the threads of privsep's daemon for slow work, set only in nova-compute.

    Attributes of a delivery of parts. ``kind``: the kind of the PCI functions at which the parts
    are made. ``part_name``: the name of such a part in data that hosts exchange; it must never
    change.
    """

    mode: DeliveryMode
    shares_driver: bool = False
    needs_hard_reboot: bool = False
    share: threads.DaemonShare

    kind: VGPUKind
    part_name: str

    # Queries

    def obstacle(self, card: GPU, functions: Sequence[PciAddress] = ()) -> str | None:
        """Return why guests cannot get *card* or its parts, with the remedy; ``None`` if they can.

        :param functions: for a delivery of parts, the functions of the card at which parts are made
        :raises OSError, ValueError: if the host's facts about parts cannot be read
        """
        return None

    def part_obstacle(self, card: GPU, slot: Slot) -> str | None:
        """Return why guests cannot get the MIG instance at *slot*, with the remedy, or ``None``."""
        return None

    def unsupported(self, operation: Operation, *, has_gpus: bool = True) -> str | None:
        """Return why Nova refuses the operation, as a text for the guest's user, else ``None``.

        :param has_gpus: whether the guest has devices of this delivery; some hosts refuse an
            operation to guests without any, too
        """
        return None

    def refuse(
        self, instance: objects.Instance, request: FlavorRequest, grants: Sequence[Grant]
    ) -> None:
        """Refuse a guest that could not start with its devices, before they are prepared for it.

        :param request: what the instance's flavor requests, here and in :meth:`render`
        :param grants: the devices; empty if only the flavor and the image are known
        :raises GPUError: if the request or one of the devices does not allow a start
        """
        return

    # Actions

    def prepare(self, grant: Grant, instance_uuid: str) -> None:
        """Prepare the device for the instance's guest, which is about to start: bind or make it.

        :raises BindingFailed, DeviceUnavailable: if it cannot be prepared now
        """
        return

    @abc.abstractmethod
    def render(
        self,
        instance: objects.Instance,
        request: FlavorRequest,
        guest: vconfig.LibvirtConfigGuest,
        grants: Sequence[Grant],
    ) -> list[GuestDevice]:
        """Add the devices to the guest's libvirt configuration.

        :returns: the descriptions of the whole cards for the guest's metadata
        :raises GuestError: if one of them cannot be given to the guest
        """

    def clean(self, grant: Grant) -> bool:
        """Remove what the last guest left on a device, which no guest has now.

        :returns: for a whole card whether it was reset, for a part whether there was anything to
            clean
        :raises NotClean, BindingFailed: if the device is not clean, or its state is unknown
        """
        return False

    def release(self, slot: Slot, instance_uuid: str | None, clean: Callable[[Slot], None]) -> None:
        """Remove or clean the part at *slot*, which the instance no longer has.

        :param instance_uuid: ``None`` if the instance is unknown
        :param clean: clean the part at a slot by :meth:`clean`, unless options prevent that
        :raises NotClean: if data of the guest may be left
        """
        return

    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        """Return whether the instance's part at *slot* exists on the host.

        :param parent: what is known of the slot's PCI function, ``None`` if the host has none
        :raises OSError: if the host cannot be read
        """
        raise NotImplementedError


def described(
    cards: Sequence[GPU], places: Mapping[PciAddress, GuestPlace], roots: Roots
) -> list[GuestDevice]:
    """Return the descriptions of *cards* for the guest's metadata.

    :param places: the cards' addresses and NUMA nodes in the guest, by their host addresses
    """
    switches = (card.pcie_switch for card in cards if card.pcie_switch is not None)
    pcie = {
        address: link
        for address in dict.fromkeys([*(card.address for card in cards), *switches])
        if (link := sysfs.pcie_link(sysfs.device(address, roots)))
    }
    return guest_devices.of_cards(cards, places, pcie)
