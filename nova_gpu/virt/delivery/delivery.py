# SPDX-License-Identifier: Apache-2.0
"""The interface of a way of delivery: what a host has of it, and what is done with its guests.

The commands ask what a host has and what stands in the way; so a module of a way imports what takes
its time, as Nova's libvirt driver and privsep do, only where a guest is given something.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

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


_NOTHING: Mapping[Operation, str] = MappingProxyType({})


class Delivery(Protocol):
    """A way of delivery of devices to guests: whole cards, or parts of them.

    Methods without a body are mandatory; override the others where there is something to do.
    """

    @property
    def refused(self) -> Mapping[Operation, str]:
        """The operations that a guest with such devices cannot have, with the text for its user."""
        return _NOTHING

    def make_ready(
        self, instance: objects.Instance, request: FlavorRequest, grants: Sequence[Grant]
    ) -> None:
        """Make the devices of a guest ready before they are the guest's.

        :param request: what the instance's flavor asks for, here and below
        :raises GuestUnfit, GuestCannotStart: where the guest cannot have them, or not now
        """
        return

    @abc.abstractmethod
    def render(
        self,
        instance: objects.Instance,
        request: FlavorRequest,
        guest: vconfig.LibvirtConfigGuest,
        grants: Sequence[Grant],
    ) -> None:
        """Put the devices into the guest's configuration.

        :raises GuestError: where one of them cannot be given
        """


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


class WholeCards(Delivery, Protocol):
    """A way in which whole cards are given, which a host has one of.

    ``shares_driver``: the host's driver goes on driving a card that a guest has, so that NVML may
    open it, and what the driver has divided stays divided. ``needs_hard_reboot``: a domain that is
    started as it was may lead to another card. ``share``: privsep's threads for slow
    work, where guests are given cards.
    """

    mode: DeliveryMode
    shares_driver: bool
    needs_hard_reboot: bool
    share: threads.DaemonShare

    @property
    def refused_to_all(self) -> Mapping[Operation, str]:
        """The operations that no guest of the host can have, with GPUs or without."""
        return _NOTHING

    # What the host has

    @abc.abstractmethod
    def obstacle(self, card: GPU) -> str | None:
        """Return why a guest cannot be given *card*, and what to do; ``None`` where it can."""

    def look(self, gpus: Collection[GPU]) -> None:
        """Take note of the host's cards, before it is asked about any of them."""
        return

    def reach_each_other(self, cards: Collection[GPU]) -> bool:
        """Return whether a guest's driver can be told that *cards* reach each other's memory."""
        return False

    def in_use(self, cards: Iterable[GPU]) -> Mapping[PciAddress, str]:
        """Return why those of *cards* without an obstacle cannot be given at this moment."""
        return {}

    def most_in_one_guest(self, cards: Collection[GPU]) -> int:
        """Return how many of *cards*, of one product, any guest can have."""
        return len(cards)

    def unfit(self, card: GPU) -> str | None:
        """Return why the guest that has *card* could not be started with it as it is now."""
        return None

    def refuse_flavor(self, instance: objects.Instance, request: FlavorRequest) -> None:
        """Refuse a flavor with GPUs with which the guest could not start, before anything is done.

        :raises GPUError: for a word of it, or what its image says
        """
        return

    # What is done

    def begin(
        self, instance: objects.Instance, request: FlavorRequest, grants: Sequence[Grant]
    ) -> None:
        """Begin the slow part of :meth:`make_ready` while Nova prepares the rest of the guest.

        :raises nova_gpu.core.exception.GPUError: as :meth:`make_ready`, which says it again
        """
        return

    @abc.abstractmethod
    def told(
        self,
        instance: objects.Instance,
        request: FlavorRequest,
        guest: vconfig.LibvirtConfigGuest,
        cards: Sequence[GPU],
    ) -> list[GuestDevice]:
        """Return what the *guest*, which is rendered, is told of its *cards*."""

    @abc.abstractmethod
    def clean(self, card: GPU) -> bool:
        """Clean *card*, which no guest has any more; returns whether it was reset.

        :raises NotClean, BindingFailed: where it is not clean, or that cannot be told
        """


class Parts(Protocol):
    """A way in which parts of cards are given, of those that a host may have several of.

    ``kind``: what the functions say that such parts are made at. ``words``: what hosts call one to
    each other, for ever. ``may_wedge``: a guest that ends as it starts may leave the function so
    that no other starts with it, of which the host tells nothing.
    """

    kind: Kind
    words: str
    may_wedge: bool = False

    @property
    @abc.abstractmethod
    def delivery(self) -> Delivery:
        """The delivery of these parts; it may be that of whole cards, too."""

    # What the host has

    def obstacle(self, card: GPU, functions: Sequence[PciAddress]) -> str | None:
        """Return why guests cannot have what is made at these *functions* of *card*.

        :raises OSError, ValueError: where the host does not tell
        """
        return None

    @abc.abstractmethod
    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        """Return whether what the instance has at *slot* is there.

        :param parent: what is known of the slot's function
        :raises OSError: where the host does not tell
        """

    # What is done

    def dividers(self) -> Mapping[str, Callable[[str], object]]:
        """Return the function that divides a card, by its address or product."""
        return {}

    @abc.abstractmethod
    def make(self, slot: Slot, instance_uuid: str) -> None:
        """Make what the instance has at *slot*.

        :raises DeviceUnavailable: where it cannot be made now
        """

    def clean(self, slot: Slot) -> bool:
        """Clean what stays at *slot* for the next guest; returns whether there was anything.

        :raises NotClean: where it is not clean, or that cannot be told
        """
        return False

    @abc.abstractmethod
    def give_back(
        self, slot: Slot, instance_uuid: str | None, clean: Callable[[Slot], None]
    ) -> None:
        """Release what is at *slot* from the instance, which may be unknown.

        :param clean: has :meth:`clean` done, as the options say
        :raises NotClean: where something is left
        """

    # While the guest runs

    def stateless(self, slot: Slot, *, is_running: bool) -> str | None:
        """Return why the state of what is at *slot* cannot be had, or given to it.

        ``None`` where nothing is known against it.

        :param is_running: a guest has it; else libvirt may find it a better driver for one
        """
        return None

    @abc.abstractmethod
    def moved(self, data: Any, instance_uuid: str, old: Slot, new: Slot) -> None:
        """Note in Nova's migrate data that the guest has *new* at the destination for *old*."""
