# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import random
import unittest
from collections.abc import Iterator
from unittest import mock

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu import vgpu_group, vgpu_room
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind, Parent, Slot, VGPUType
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.virt.inventory.vgpu_rooms import Rooms, Use
from tests.fixtures import cards

TYPES = {
    each.id: each
    for each in (VGPUType("nvidia-1", memory_mib=1024), VGPUType("nvidia-2", memory_mib=2048))
}
BUSES = ("10", "20", "30")
NOBODY = Use(frozenset(), frozenset(), frozenset(), frozenset())


def functions(bus: str) -> list[PciAddress]:
    return [PciAddress.parse(f"0000:{bus}:00.{number}") for number in range(1, 5)]


def card(bus: str) -> SharedCard:
    available = dict.fromkeys(TYPES, 1)
    parents = {each: Parent(Kind.TYPED, available, {}) for each in functions(bus)}
    gpu = cards.placed(f"0000:{bus}:00.0", 0)
    return SharedCard(gpu, DividedCard(TYPES, parents))


def alone(bus: str) -> SharedCard:
    """One of mediated devices of its own"""
    gpu = cards.placed(f"0000:{bus}:00.0", 0)
    parents = {gpu.address: Parent(Kind.MEDIATED, {"nvidia-1": 3, "nvidia-2": 1}, {})}
    return SharedCard(gpu, DividedCard(TYPES, parents))


class RoomsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.cards = [card(bus) for bus in BUSES]
        self.rooms = Rooms()
        self.asked: list[SharedCard] = []
        original = SharedCard.room

        def room(this: SharedCard, *args: object) -> vgpu_room.Room:
            self.asked.append(this)
            return original(this, *args)  # type: ignore[arg-type]

        patch = mock.patch.object(SharedCard, "room", room)
        patch.start()
        self.addCleanup(patch.stop)

    def test_nothing_is_worked_out_while_nothing_changes(self) -> None:
        first = self.rooms.of(self.cards, NOBODY)
        self.assertNotEqual([], self.asked)
        self.asked.clear()
        self.assertEqual(first, self.rooms.of(self.cards, dataclasses.replace(NOBODY)))
        self.assertEqual([], self.asked)

    def test_of_one_claim_one_card_is_worked_out(self) -> None:
        self.rooms.of(self.cards, NOBODY)
        self.asked.clear()
        slots = frozenset({Slot(functions("20")[0], "nvidia-1", 0)})
        found = self.rooms.of(self.cards, Use(slots, slots, slots, slots))
        self.assertEqual({self.cards[1].gpu.address}, {each.gpu.address for each in self.asked})
        room = found[self.cards[1].gpu.address].rooms["nvidia-1"]
        self.assertEqual((1, 1), (room.taken, room.free))

    def test_the_slots_of_a_group_are_one_object(self) -> None:
        (group, *_) = vgpu_group.groups({each.gpu.address: each for each in self.cards}).values()
        first = self.rooms.slots(group, self.rooms.of(self.cards, NOBODY))
        self.assertEqual(len(BUSES) * 4, len(first))
        self.assertIs(first, self.rooms.slots(group, self.rooms.of(self.cards, NOBODY)))

    def test_as_if_it_knew_nothing_whatever_happened_before(self) -> None:
        chance = random.Random(20261124)
        for use, there in self._history(chance, 300):
            kept, fresh = (rooms.of(there, use) for rooms in (self.rooms, Rooms()))
            self.assertEqual(fresh, kept)
            for group in vgpu_group.groups({each.gpu.address: each for each in there}).values():
                self.assertEqual(
                    Rooms().slots(group, fresh), self.rooms.slots(group, kept), group.key
                )

    def _history(self, chance: random.Random, steps: int) -> Iterator[tuple[Use, list[SharedCard]]]:
        there = [*self.cards, alone("40")]
        slots = [Slot(f, t, 0) for bus in BUSES for f in functions(bus) for t in TYPES]
        slots += [Slot(there[-1].gpu.address, "nvidia-1", number) for number in range(4)]
        taken: set[Slot] = set()
        whole: set[PciAddress] = set()
        for _ in range(steps):
            taken ^= {chance.choice(slots)}
            if chance.random() < 0.2:
                whole ^= {chance.choice([there[0].gpu.address, *functions("20")])}
            if chance.random() < 0.2:
                number = chance.randrange(len(there))
                ill = chance.choice((None, "it is ill"))
                there[number] = dataclasses.replace(there[number], ill=ill)
            if chance.random() < 0.2:
                number = chance.randrange(len(there))
                function = chance.choice(list(there[number].card.parents))
                made = {} if chance.random() < 0.5 else {"nvidia-1": 1}
                parents = dict(there[number].card.parents)
                parents[function] = dataclasses.replace(parents[function], made=made)
                changed = dataclasses.replace(there[number].card, parents=parents)
                there[number] = dataclasses.replace(there[number], card=changed)
            some = [frozenset(s for s in taken if chance.random() < 0.7) for _ in range(2)]
            yield Use(frozenset(taken), some[0], some[1], frozenset(taken | whole)), list(there)
