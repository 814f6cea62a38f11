# SPDX-License-Identifier: Apache-2.0
"""Two vGPUs for one instance, on hosts whose cards are part full: which it gets, by the pool itself
and by counting.

    python -m unittest tests.unit.virt.inventory.test_vgpu_inventory_part_full
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import random
from collections.abc import Collection

import fixtures
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, DeliveryMode, GroupKey, PciAddress, Product
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind, Parent, Slot, VGPUType, device_uuid
from nova_gpu.core.vgpu.vgpu_group import SharedCard, groups
from nova_gpu.host.roots import Roots
from nova_gpu.virt import sets
from nova_gpu.virt.delivery import made_vgpus, ways
from nova_gpu.virt.inventory import vgpu_cards, vgpu_inventory
from nova_gpu.virt.usage import ledger

STATES = 10_000
PROVIDER = "the provider of the type that is asked for"
GUEST = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
SIZES = {"nvidia-1": 1, "nvidia-2": 2, "nvidia-3": 4, "nvidia-4": 8}
PRODUCT = Product("10de", "26b9")


@dataclasses.dataclass
class Card:
    """A card of 8 GiB, with so many of one type: made for guests, made by others, promised.

    ``functions``: 0 of a card that makes mediated devices itself; else each is one vGPU.
    """

    address: PciAddress
    functions: int
    type_id: str
    made: int
    others: int
    promised: int

    @property
    def used(self) -> int:
        return self.made + self.others + self.promised

    def room(self, asked: str) -> int:
        """How many of the type *asked* more there can be: a card has vGPUs of one type."""
        if self.used and self.type_id != asked:
            return 0
        most = 8 // SIZES[asked]
        return (min(most, self.functions) if self.functions else most) - self.used

    def parents(self) -> list[PciAddress]:
        places = range(1, self.functions + 1) if self.functions else [0]
        return [dataclasses.replace(self.address, slot=each) for each in places]

    def slots(self) -> list[Slot]:
        """Of what there is, those of others first"""
        if self.functions:
            return [Slot(each, self.type_id, 0) for each in self.parents()[: self.used]]
        return [Slot(self.address, self.type_id, number) for number in range(self.used)]

    def says(self) -> DividedCard:
        """As the driver tells it: nothing of what is only promised"""
        made = self.made + self.others
        left = {
            each: min(dataclasses.replace(self, promised=0).room(each), 1 if self.functions else 8)
            for each in SIZES
        }
        parents = {}
        for index, address in enumerate(self.parents()):
            if not self.functions:
                parents[address] = Parent(Kind.MEDIATED, left, {self.type_id: made} if made else {})
            elif index < made:
                parents[address] = Parent(Kind.TYPED, {}, {self.type_id: 1})
            else:
                parents[address] = Parent(Kind.TYPED, left, {})
        types = {
            each: VGPUType(each, memory_mib=size * 1024, per_card=8 // size)
            for each, size in SIZES.items()
        }
        return DividedCard(types, parents)


class PartFullTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.config = self.useFixture(config_fixture.Config(CONF))
        roots = Roots(root, root, root, ())
        own = ways.Ways(roots, lambda _: None, libvirt_version=lambda: 10000000)
        self.cards = vgpu_cards.VGPUCards(roots, own)
        self.made = made_vgpus.MadeVGPUs(root / "gpu-vgpus")

    def test_two_of_one_type(self) -> None:
        draw = random.Random(20261122)
        seen = set()
        for number in range(STATES):
            order = ("depth_first", "breadth_first")[number % 2]
            self.config.config(group="gpu", vgpu_order=order)
            cards, asked = _state(draw)
            rooms = [card.room(asked) for card in cards]
            free = self.free(cards, asked)
            self.assertEqual(sum(rooms), len(free), (cards, asked))
            if len(free) < 2:
                continue
            chosen = self.published.choose(PROVIDER, free, 2)
            self.assertEqual(2, len(set(chosen) & free))
            found = tuple(
                sum(each.parent in card.parents() for each in chosen if isinstance(each, Slot))
                for card in cards
            )
            best = _depth_first(rooms) if order == "depth_first" else _breadth_first(rooms)
            self.assertEqual(best, found, (order, rooms))
            seen.add((order, 2 in found))
        self.assertEqual(4, len(seen))  # together and apart, in each order

    def free(self, cards: list[Card], asked: str) -> Collection[Slot]:
        shared = {
            card.address: SharedCard(GPU(card.address, PRODUCT, 0x030200), card.says())
            for card in cards
        }
        noted, there, notes = ledger.Ledger(), set(), {}
        joined = sets.NoSets()
        for card in cards:
            guests = card.slots()[card.others :]
            noted.was_used(guests)
            made = guests[: card.made]
            notes |= dict.fromkeys(made, GUEST)
            there |= {device_uuid(GUEST, slot) for slot in made}
        self.made._instances = notes
        self.cards.look = vgpu_cards.Look(shared, groups(shared), frozenset(there))
        self.published = vgpu_inventory.VGPUInventory(self.cards, self.made, noted, joined)
        key = GroupKey("10de", "26b9", DeliveryMode.VGPU, asked)
        self.published.provider_uuids = {key: PROVIDER}
        every = [
            Slot(parent, asked, number)
            for card in cards
            for parent in card.parents()
            for number in range(1 if card.functions else 8)
        ]
        return self.published.usable(PROVIDER, every, set())


def _state(draw: random.Random) -> tuple[list[Card], str]:
    cards = []
    for bus in range(draw.randint(1, 4)):
        card = Card(
            PciAddress(0, bus, 0, 0), draw.choice((0, 0, 3, 8)), draw.choice([*SIZES]), 0, 0, 0
        )
        most = card.room(card.type_id)
        card.made = draw.randint(0, most)
        card.others = draw.randint(0, most - card.made) if draw.random() < 0.3 else 0
        card.promised = draw.randint(0, most - card.used) if draw.random() < 0.3 else 0
        cards.append(card)
    return cards, draw.choice([*SIZES])


def _depth_first(rooms: list[int]) -> tuple[int, ...]:
    """The fullest that has room gives both, or one and the next fullest the other."""
    order = sorted((card for card, room in enumerate(rooms) if room), key=lambda c: (rooms[c], c))
    given = [order[0], order[0] if rooms[order[0]] > 1 else order[1]]
    return tuple(given.count(card) for card in range(len(rooms)))


def _breadth_first(rooms: list[int]) -> tuple[int, ...]:
    """Of all ways to give two the one that leaves the rooms as even as can be"""
    ways = []
    for pair in itertools.product(range(len(rooms)), repeat=2):
        given = tuple(pair.count(card) for card in range(len(rooms)))
        left = [room - each for room, each in zip(rooms, given, strict=True)]
        if min(left) >= 0:
            ways.append((sorted(left, reverse=True), left, given))
    return min(ways)[2]
