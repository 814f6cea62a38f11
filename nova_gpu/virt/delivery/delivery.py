# SPDX-License-Identifier: Apache-2.0
"""The interface of a way of delivery: what a host has of it, and what is done with its guests.

The commands ask what a host has and what stands in the way; so a module of a way has from
:mod:`nova_gpu.virt.delivery.service` what takes its time to import and only guests need.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from nova_gpu.core.guest import devices as guest_devices
from nova_gpu.core.guest.devices import GuestDevice
from nova_gpu.core.guest.tree import Place
from nova_gpu.core.model import GPU, DeliveryMode, PciAddress
from nova_gpu.core.vgpu.vgpu import Kind, Parent, Slot
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

if TYPE_CHECKING:
    from nova import objects
    from nova.virt.libvirt import config as vconfig

    from nova_gpu.core.flavor.request import FlavorRequest
    from nova_gpu.virt import threads

# A whole card, or the place of one vGPU.
Grant: TypeAlias = GPU | Slot


class Operation(enum.Enum):
    """An operation of Nova on a guest that some guests cannot have."""

    SUSPEND = enum.auto()
    # A suspend on the way to an image, where the host takes none of a running guest
    SNAPSHOT = enum.auto()
    RESCUE = enum.auto()
    LIVE_MIGRATION = enum.auto()


class Delivery(abc.ABC):
    """A way of delivery of devices to guests: of whole cards, which a host has one of, or of parts.

    :meth:`render` is mandatory, and :meth:`is_there` of parts; override the others where there is
    something to do.

    A way of whole cards has these attributes. ``shares_driver``: the host's driver goes on driving
    a card that a guest has, so that NVML may open it, and what the driver has divided stays
    divided. ``needs_hard_reboot``: a domain that is started as it was may lead to another card.
    ``share``: privsep's threads for slow work, where guests are given cards.

    A way of parts has these. ``kind``: what the functions say that such parts are made at.
    ``words``: what hosts call one to each other, for ever. ``may_wedge``: a guest that ends as it
    starts may leave the function so that no other starts with it, of which the host tells nothing.
    """

    mode: DeliveryMode
    shares_driver: bool = False
    needs_hard_reboot: bool = False
    share: threads.DaemonShare

    kind: Kind
    words: str
    may_wedge: bool = False

    # What is possible

    def obstacle(self, card: GPU, functions: Sequence[PciAddress] = ()) -> str | None:
        """Return why guests cannot be given *card*, and what to do; ``None`` where they can.

        :param functions: those at which its parts are made, for these
        :raises OSError, ValueError: where the host does not tell it of parts
        """
        return None

    def unsupported(self, operation: Operation, *, has_gpus: bool = True) -> str | None:
        """Return why a guest cannot have the operation, for its user.

        :param has_gpus: whether it has devices of this way: some hosts refuse it to all guests
        """
        return None

    def refuse(
        self, instance: objects.Instance, request: FlavorRequest, grants: Sequence[Grant]
    ) -> None:
        """Refuse a guest that could not start with its devices, before they are taken for it.

        :param request: what the instance's flavor asks for, here and below
        :param grants: its devices; none where only the flavor and the image are known
        :raises GPUError: for what it asks for, or what it would get
        """
        return

    # What is done

    def prepare(self, grant: Grant, instance_uuid: str) -> None:
        """Make ready what the instance's guest is about to start with.

        :raises BindingFailed, DeviceUnavailable: where that cannot be done now
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
        """Put the devices into the guest's configuration.

        :returns: what the guest is told of its whole cards
        :raises GuestError: where one of them cannot be given
        """

    def clean(self, grant: Grant) -> bool:
        """Clean what no guest has any more, and return what was done.

        Of a whole card it is whether it was reset; of a part, whether there was anything to clean.

        :raises NotClean, BindingFailed: where it is not clean, or that cannot be told
        """
        return False

    def release(self, slot: Slot, instance_uuid: str | None, clean: Callable[[Slot], None]) -> None:
        """Release the part at *slot* from the instance, which may be unknown.

        :param clean: has :meth:`clean` done, as the options say
        :raises NotClean: where something is left
        """
        return

    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        """Return whether what the instance has at *slot* is there.

        :param parent: what is known of the slot's function
        :raises OSError: where the host does not tell
        """
        raise NotImplementedError


def told_of_cards(
    cards: Sequence[GPU], places: Mapping[PciAddress, Place], roots: Roots
) -> list[GuestDevice]:
    """Return what a guest is told of its *cards*.

    :param places: where the guest finds them, by their addresses on the host
    """
    switches = (card.pcie_switch for card in cards if card.pcie_switch is not None)
    pcie = {
        address: link
        for address in dict.fromkeys([*(card.address for card in cards), *switches])
        if (link := sysfs.pcie_link(sysfs.device(address, roots)))
    }
    return guest_devices.of_cards(cards, places, pcie)
