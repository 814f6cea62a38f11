# SPDX-License-Identifier: Apache-2.0
"""The interface to boards whose cards guests can only get in fixed sets.

Cards on a board with NVSwitches are joined in such sets, Fabric Manager's partitions
(:mod:`nova_gpu.fabric` implements the interface). The inventory and the start of guests use it.
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
    """The cards of a host that guests get only in fixed sets.

    A vGPU that occupies a whole card counts as that card here.
    """

    @property
    @abc.abstractmethod
    def modules(self) -> Mapping[PciAddress, Module]:
        """The module number of each card, which is its place on the board, by address."""

    # Updates

    def look(self, cards: Collection[GPU]) -> None:
        """Record the host's cards; call it before any query about one of them."""
        return

    def look_at_parts(self, card: GPU, divided: DividedCard) -> Mapping[str, str]:
        """Record the vGPU types of *card*, as *divided* lists them.

        Return the types that no guest could use, each with the reason.
        """
        return _NOTHING

    # Queries

    @abc.abstractmethod
    def why_not(self, card: GPU, *, in_parts: bool = False) -> str | None:
        """Return why new guests cannot be given *card*, and the remedy; ``None`` if they can.

        :param in_parts: whether the guests would get a vGPU that occupies the whole card
        """

    @abc.abstractmethod
    def offered(
        self, cards: Collection[PciAddress], free: Collection[PciAddress], vgpu_type: str | None
    ) -> Board | None:
        """Return the sets of *cards*, ``None`` if guests can get any combination of them.

        :param free: the cards that a guest could be given now
        :param vgpu_type: the type of the vGPUs that guests get, ``None`` for whole cards
        """

    @abc.abstractmethod
    def choose(
        self, free: Collection[PciAddress], count: int, beside: Beside[PciAddress] | None = None
    ) -> tuple[PciAddress, ...] | None:
        """Return *count* of the *free* cards for a guest, sorted.

        Return ``None`` if any *count* of them will do, or no set fits.

        :param beside: the costs of a choice by the flavor's arrangement, such as its distance from
            the instance's network device; the lowest cost wins
        """

    # Actions

    def join(self, devices: Collection[Device], instance_uuid: str) -> None:
        """Join the cards of *devices* for a guest that is about to start with them.

        :raises BetterElsewhere, DeviceUnavailable: if they cannot be joined
        """
        return

    def part(self) -> None:
        """Join the sets of guests, and separate those of ended guests; raise nothing."""
        return


class NoSets(Sets):
    """A host whose guests can get any combination of its cards."""

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
    """A host where :mod:`nova_gpu.fabric` is not installed; cards on HGX boards are not offered."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def why_not(self, card: GPU, *, in_parts: bool = False) -> str | None:
        name = nvswitch.board(card, self._roots)
        return name and f"{name} is a module of an HGX board: {_NOT_INSTALLED}"

    def look_at_parts(self, card: GPU, divided: DividedCard) -> Mapping[str, str]:
        name = nvswitch.board(card, self._roots)
        return unfit_types(divided, name, _NOT_INSTALLED) if name else _NOTHING


def of_machines(roots: Roots, ledger: Ledger | None) -> Sets:
    """Return the sets of a KVM host's cards.

    :param ledger: the devices of each instance, in nova-compute; ``None`` in the commands
    """
    door = extensions.load(extensions.SETS)
    sets: Sets = door.Fabric(roots, ledger) if door else Unjoined(roots)
    return sets


def unfit_types(divided: DividedCard, name: str, reason: str | None) -> Mapping[str, str]:
    """Return the vGPU types that occupy a whole card of a board, each with why no guest can use it.

    :param name: the name of the card
    :param reason: why guests cannot use the board's sets; ``None`` makes the result empty
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
    """Return how many guests could get a set of the *free* cards, by the size of the set.

    The result is empty if guests can get any combination of the cards.

    :param free: all free cards of the group
    """
    board = sets.offered(free, free, vgpu_type)
    return board.room() if board else {}


def withheld(sets: Sets, card: GPU, divided: DividedCard) -> Mapping[str, str]:
    """Return the vGPU types of *card* that new guests cannot be given, each with the reason.

    :param divided: the vGPU types and functions of *card*
    """
    reason = sets.why_not(card, in_parts=True)
    return dict.fromkeys(vgpu_capacity.whole_types(divided), reason) if reason else _NOTHING


def unmovable(sets: Sets, card: PciAddress, slot: Slot) -> str | None:
    """Return why a guest with the vGPU *slot* of *card* cannot be live migrated, else ``None``."""
    if card == slot.parent or sets.offered([card], (), slot.type_id) is None:
        return None
    return (
        f"its vGPU {slot} is all of a card that NVSwitches join for it, and nova-gpu activates "
        "no partition for a guest that arrives running"
    )
