# SPDX-License-Identifier: Apache-2.0
"""The interface to boards whose cards guests can only get in fixed sets.

The switches of such a board join the cards of a set while a guest has it. An extension implements
the interface (entry points ``nova_gpu.sets``); the inventory and the start of guests use it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from nova_gpu.core import extensions
from nova_gpu.core.card_sets import CardSets, Module
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.topology.choose import Beside
from nova_gpu.core.vgpu import vgpu_capacity
from nova_gpu.core.vgpu.vgpu import DividedCard, Slot
from nova_gpu.host.pci import nvswitch
from nova_gpu.host.roots import Roots

if TYPE_CHECKING:
    from nova_gpu.virt.usage.ledger import Ledger

_NOTHING: Mapping[str, str] = MappingProxyType({})
_NOT_INSTALLED = (
    "no extension of nova-gpu that lets its NVSwitches join cards for guests is installed; install "
    "one"
)


class Sets:
    """The sets in which guests can get a host's cards; here, any combination of them.

    A vGPU that occupies a whole card counts as that card.
    """

    @property
    def modules(self) -> Mapping[PciAddress, Module]:
        """The number of each card's module, which is its place on the board, by address."""
        return {}

    # Updates

    def look(self, cards: Collection[GPU]) -> None:
        """Note the cards that the host has; call it before any query about one of them."""

    def look_at_parts(self, card: GPU, divided: DividedCard) -> Mapping[str, str]:
        """Note the vGPU types of *card*; return why no guest can use some of them, by type id."""
        return _NOTHING

    # Queries

    def why_not(self, card: GPU, *, in_parts: bool = False) -> str | None:
        """Return why the sets keep *card* from new guests, and the remedy; ``None`` if they do not.

        :param in_parts: whether the guests would get a vGPU that occupies the whole card
        """
        return None

    def withheld(self, card: GPU, divided: DividedCard) -> Mapping[str, str]:
        """Return why new guests cannot get the vGPU types that occupy the whole *card*, by type id.

        The result is empty if they can.
        """
        reason = self.why_not(card, in_parts=True)
        return dict.fromkeys(vgpu_capacity.whole_types(divided), reason) if reason else _NOTHING

    def unmovable(self, card: PciAddress, slot: Slot) -> str | None:
        """Return why a guest cannot be live migrated if its vGPU at *slot* occupies all of *card*.

        Return ``None`` for a smaller vGPU, and for a card whose set needs no activation.
        """
        return None

    def offered(
        self, cards: Collection[PciAddress], free: Collection[PciAddress], vgpu_type: str | None
    ) -> CardSets | None:
        """Return the sets in which guests can get *cards*, and which of these are free.

        Return ``None`` if guests can get any combination of the cards.

        :param vgpu_type: the id of the vGPU type that guests get, ``None`` for whole cards
        """
        return None

    def room(self, free: Collection[PciAddress]) -> Mapping[int, int]:
        """Return how many guests can get a set of the *free* cards, by the number of its cards.

        The result is empty if guests can get any combination of the cards.
        """
        sets = self.offered(free, free, None)
        return sets.room() if sets else {}

    def choose(
        self, free: Collection[PciAddress], count: int, beside: Beside[PciAddress] | None = None
    ) -> tuple[PciAddress, ...] | None:
        """Return which *count* of the *free* cards an instance should get, sorted by address.

        Return ``None`` if any *count* of them will do, or no set fits: the caller chooses then.

        :param beside: the cost of a choice, such as its distance from the instance's network
            device, if the flavor asks for that; the lowest cost wins
        """
        return None

    # Actions

    def join(self, devices: Collection[Device], instance_uuid: str) -> None:
        """Activate the set of the cards of *devices*, for a guest that is about to start with them.

        :raises BetterElsewhere: if the cards are no set
        :raises DeviceUnavailable: if the set cannot be activated
        """

    def part(self) -> None:
        """Activate the sets that guests have, and deactivate all others; raise nothing."""


class Unjoined(Sets):
    """A KVM host without an extension for boards with NVSwitches: it offers none of their cards."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def why_not(self, card: GPU, *, in_parts: bool = False) -> str | None:
        name = nvswitch.board(card, self._roots)
        return name and f"{name} is a module of an HGX board: {_NOT_INSTALLED}"

    def look_at_parts(self, card: GPU, divided: DividedCard) -> Mapping[str, str]:
        name = nvswitch.board(card, self._roots)
        return unfit_types(divided, name, _NOT_INSTALLED) if name else _NOTHING


def of_machines(roots: Roots, ledger: Ledger | None) -> Sets:
    """Return the sets in which virtual machines can get this host's cards."""
    for kind in extensions.load("nova_gpu.sets"):
        sets: Sets = kind(roots, ledger)
        return sets
    return Unjoined(roots)


def unfit_types(divided: DividedCard, name: str, reason: str | None) -> Mapping[str, str]:
    """Return why no guest can use the vGPU types that occupy the whole card, by the type's id.

    :param reason: why the board's sets cannot be activated; ``None`` makes the result empty
    """
    return {
        type_id: (
            f"the vGPU type {divided.types[type_id].name or type_id} is all of {name}, which "
            f"is a module of an HGX board: {reason}; or name smaller types, or MIG-backed "
            "ones, in [gpu]vgpu_types"
        )
        for type_id in (vgpu_capacity.whole_types(divided) if reason else ())
    }
