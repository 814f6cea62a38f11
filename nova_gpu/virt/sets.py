# SPDX-License-Identifier: Apache-2.0
"""The door of what joins cards in exact sets alone: what the inventory and a start ask it.

Cards on a board with NVSwitches are so (:mod:`nova_gpu.fabric`).
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from nova_gpu.core import extensions
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.sets.partitions import Module
from nova_gpu.core.sets.set_traits import Board
from nova_gpu.core.topology.choose import Beside
from nova_gpu.core.vgpu import vgpu_capacity
from nova_gpu.core.vgpu.vgpu import DividedCard, Slot
from nova_gpu.host.pci import nvswitch
from nova_gpu.host.roots import Roots

if TYPE_CHECKING:
    from nova_gpu.virt.usage.ledger import Ledger

_NOTHING: Mapping[str, str] = MappingProxyType({})
_NOT_INSTALLED = (
    "nova_gpu.fabric, which has its NVSwitches joined for guests, is not installed; install it"
)


class Sets(Protocol):
    """The cards of a host that guests get in exact sets.

    A guest with a vGPU that is all of a card has that card here.
    """

    @property
    @abc.abstractmethod
    def modules(self) -> Mapping[PciAddress, Module]:
        """The places of cards on their board."""

    # What the host tells

    def look(self, cards: Collection[GPU]) -> None:
        """Note the host's cards, before a question about any of them."""
        return

    def look_at_parts(self, card: GPU, divided: DividedCard) -> Mapping[str, str]:
        """Note the types of *divided*, which is *card*.

        Return those that no guest could use, with why.
        """
        return _NOTHING

    # What is asked

    @abc.abstractmethod
    def why_not(self, card: GPU, *, in_parts: bool = False) -> str | None:
        """Return why new guests cannot be given *card*, and what to do.

        :param in_parts: as a vGPU that is all of it
        """

    @abc.abstractmethod
    def offered(
        self, cards: Collection[PciAddress], free: Collection[PciAddress], vgpu_type: str | None
    ) -> Board | None:
        """Return the sets of *cards*, None where guests get any of them.

        :param free: the cards that a guest could be given now
        :param vgpu_type: the type of the vGPUs that guests have of them
        """

    @abc.abstractmethod
    def choose(
        self, free: Collection[PciAddress], count: int, beside: Beside[PciAddress] | None = None
    ) -> tuple[PciAddress, ...] | None:
        """Return *count* of the *free* cards for a guest, sorted, None where any will do."""

    # What is done

    def join(self, devices: Collection[Device], instance_uuid: str) -> None:
        """Join the cards of *devices* for a guest that is about to start with them.

        :raises BetterElsewhere, DeviceUnavailable: where they cannot be joined
        """
        return

    def part(self) -> None:
        """Activate the partitions of guests, deactivate those of ended guests; raise nothing."""
        return


class NoSets(Sets):
    """A host whose guests get any of its cards."""

    @property
    def modules(self) -> Mapping[PciAddress, Module]:
        return {}

    def why_not(self, card: GPU, *, in_parts: bool = False) -> str | None:
        return None

    def offered(
        self, cards: Collection[PciAddress], free: Collection[PciAddress], vgpu_type: str | None
    ) -> Board | None:
        return None

    def choose(
        self, free: Collection[PciAddress], count: int, beside: Beside[PciAddress] | None = None
    ) -> tuple[PciAddress, ...] | None:
        return None


class Unjoined(NoSets):
    """A host without what joins cards. Those that need NVSwitches are not offered."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def why_not(self, card: GPU, *, in_parts: bool = False) -> str | None:
        name = nvswitch.board(card, self._roots)
        return name and f"{name} is a module of an HGX board: {_NOT_INSTALLED}"

    def look_at_parts(self, card: GPU, divided: DividedCard) -> Mapping[str, str]:
        name = nvswitch.board(card, self._roots)
        return unfit_types(divided, name, _NOT_INSTALLED) if name else _NOTHING


def of_machines(roots: Roots, ledger: Ledger | None) -> Sets:
    """Return the sets of a KVM host.

    :param ledger: who has what, where guests are given cards
    """
    door = extensions.load(extensions.SETS)
    sets: Sets = door.Fabric(roots, ledger) if door else Unjoined(roots)
    return sets


def unfit_types(divided: DividedCard, name: str, reason: str | None) -> Mapping[str, str]:
    """Return the types that are all of a card on a board, each with why no guest could use it.

    :param name: of the card
    :param reason: why its board is of no use to guests; without one there is no such type
    """
    return {
        type_id: (
            f"the vGPU type {divided.types[type_id].name or type_id} is all of {name}, which "
            f"is a module of an HGX board: {reason}; or name smaller types, or MIG-backed "
            "ones, in [gpu]vgpu_types"
        )
        for type_id in (vgpu_capacity.whole_types(divided) if reason else ())
    }


def room(
    sets: Sets, free: Collection[PciAddress], vgpu_type: str | None = None
) -> Mapping[int, int]:
    """Return how many guests of each size could have sets of *free*, all that is free.

    Nothing where guests get any cards.
    """
    board = sets.offered(free, free, vgpu_type)
    return board.room() if board else {}


def withheld(sets: Sets, card: GPU, divided: DividedCard) -> Mapping[str, str]:
    """Return the types of *divided*, which is *card*, that new guests cannot be given, with why."""
    reason = sets.why_not(card, in_parts=True)
    return dict.fromkeys(vgpu_capacity.whole_types(divided), reason) if reason else _NOTHING


def unmovable(sets: Sets, card: PciAddress, slot: Slot) -> str | None:
    """Return why a guest with *slot* of *card* is not moved as it runs."""
    if card == slot.parent or sets.offered([card], (), slot.type_id) is None:
        return None
    return (
        f"its vGPU {slot} is all of a card that NVSwitches join for it, and nova-gpu activates "
        "no partition for a guest that arrives running"
    )
