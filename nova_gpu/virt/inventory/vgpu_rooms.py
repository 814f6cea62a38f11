# SPDX-License-Identifier: Apache-2.0
"""What cards that are given in parts have room for, and their slots, kept while nothing changes.

Every claim publishes both, and one claim changes one card: of hundreds of virtual functions times
tens of types what others have is not worked out anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from nova_gpu.core.device import Device
from nova_gpu.core.model import GroupKey, PciAddress
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_group import SharedCard, VGPUGroup
from nova_gpu.core.vgpu.vgpu_room import Room

_Slots = frozenset[Slot]


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """Who has what, as far as it matters to rooms.

    ``taken`` is what instances have or are promised, ``pending`` that of it at which nothing is
    made yet, ``counted`` what Placement counts for somebody, and ``named`` all that no claim may
    draw, whole functions included.
    """

    taken: _Slots
    pending: _Slots
    counted: _Slots
    named: frozenset[Device]

    def of(self, card: SharedCard) -> Use:
        """What of it is the card's"""
        functions = card.card.parents.keys()
        own = {each for each in self.named if card.has(each) or each == card.gpu.address}
        taken, pending, counted = (
            frozenset(slot for slot in slots if slot.parent in functions)
            for slots in (self.taken, self.pending, self.counted)
        )
        return Use(taken, pending, counted, frozenset(own))


@dataclasses.dataclass(frozen=True, slots=True)
class CardRooms:
    """Of one card, by the id of each type: the room as Placement counts, and all the slots that
    there can be or are. ``possible`` are those that there can be, and for which total."""

    card: SharedCard
    use: Use
    rooms: Mapping[str, Room]
    slots: Mapping[str, _Slots]
    possible: Mapping[str, tuple[int, _Slots]]


class Rooms:
    """Of all cards of a host, worked out where something changed since they were asked for last"""

    def __init__(self) -> None:
        self._by_card: Mapping[PciAddress, CardRooms] = {}
        self._slots: dict[GroupKey, tuple[list[_Slots], _Slots]] = {}

    def of(self, cards: Iterable[SharedCard], use: Use) -> Mapping[PciAddress, CardRooms]:
        """By the card's address"""
        before = self._by_card
        found = {card.gpu.address: _of(card, use, before.get(card.gpu.address)) for card in cards}
        self._by_card = found
        return found

    def slots(self, group: VGPUGroup, by_card: Mapping[PciAddress, CardRooms]) -> _Slots:
        """All that there can be of the group's type, and what there is: the same object as long as
        nothing changes."""
        parts = [by_card[address].slots[group.facts.id] for address in group.cards]
        before = self._slots.get(group.key)
        if before is None or before[0] != parts:
            before = self._slots[group.key] = parts, frozenset[Slot]().union(*parts)
        return before[1]


def _of(card: SharedCard, use: Use, before: CardRooms | None) -> CardRooms:
    own = use.of(card)
    if before is not None and before.card is not card:
        before = None
    if before is not None and before.use == own:
        return before
    left = card.without(own.named)
    rooms, slots, possible = {}, {}, {}
    for type_id in card.card.types:
        rooms[type_id] = _room(left, type_id, own)
        total = _most_slots(card, type_id, own.taken)
        known = before.possible[type_id] if before is not None else None
        if known is None or known[0] != total:
            known = total, frozenset(card.slots(type_id, total))
        possible[type_id] = known
        # There also where the card has fewer functions now.
        there = {slot for slot in own.taken if slot.type_id == type_id}
        slots[type_id] = known[1] if there <= known[1] else known[1] | there
    return CardRooms(card, own, rooms, slots, possible)


def _room(card: SharedCard, type_id: str, use: Use) -> Room:
    """As Placement counts: what nobody has that it knows is reserved."""
    room = card.room(type_id, use.taken, use.pending)
    own = sum(slot.type_id == type_id for slot in use.counted)
    return Room(max(room.total, own), own, room.free)


def _most_slots(card: SharedCard, type_id: str, taken: Collection[Slot]) -> int:
    """How many there are at the card's one function; of one that has several each tells its own."""
    if len(card.card.parents) > 1:
        return 0
    return card.room(type_id, taken, ()).total
