# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import itertools
import random
import unittest
import uuid
from collections.abc import Mapping, Sequence

from nova_gpu.core import exception
from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.core.vgpu import vgpu, vgpu_capacity
from nova_gpu.core.vgpu.vgpu import DividedCard, Parent, Slot, VGPUKind, VGPUType
from nova_gpu.core.vgpu.vgpu_capacity import CardCapacity, Order, choose
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from tests.fixtures.bases import fuzz

CARD = PciAddress.parse("0000:3b:00.0")


class SlotTest(unittest.TestCase):
    def test_is_for_ever(self) -> None:
        # It stands in Nova's database.
        self.assertEqual("0000:3b:00.0/nvidia-35/0", str(vgpu.Slot(CARD, "nvidia-35", 0)))

    def test_of_a_device_that_others_made(self) -> None:
        """It is read back, and the device has the same uuid whoever has it."""
        made = "4b20d080-1b54-4048-85b3-a6a62d165c01"
        slot = vgpu.Slot.of_device(CARD, "nvidia-35", made.upper())
        self.assertEqual(f"0000:3b:00.0/nvidia-35/{made}", str(slot))
        self.assertEqual(slot, vgpu.Slot.parse(str(slot)))
        self.assertEqual(made, vgpu.device_uuid(str(uuid.uuid4()), slot))
        self.assertIsNone(vgpu.Slot(CARD, "nvidia-35", 999_999_999).device)

    def test_nothing_else_is_one(self) -> None:
        made = "4b20d080-1b54-4048-85b3-a6a62d165c01"
        numbers = ("1000000000", "", "00", "-1", "1/2", "٣", made.upper(), made.replace("-", ""))
        nil = "00000000-0000-0000-0000-000000000001"
        for text in (
            *(f"{CARD}/nvidia-35/{number}" for number in (*numbers, nil)),
            *("", f"{CARD}", f"{CARD}/nvidia-35", f"{CARD}/../0", f"{CARD}//0"),
            *("0000:3B:00.0/nvidia-35/0", "3b:00.0/nvidia-35/0"),
        ):
            with self.subTest(text), self.assertRaises(exception.InvalidValue):
                vgpu.Slot.parse(text)


class DeviceUuidTest(unittest.TestCase):
    def test_is_for_ever(self) -> None:
        # After the host has booted the device is made with it again, and libvirt's domain names it.
        instance = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
        slot = vgpu.Slot(CARD, "nvidia-35", 0)
        self.assertEqual("8bd15cae-e882-51a9-b82a-5f9d66ee46d3", vgpu.device_uuid(instance, slot))
        self.assertEqual(vgpu.device_uuid(instance.upper(), slot), vgpu.device_uuid(instance, slot))

    def test_of_an_instance_only(self) -> None:
        for text in ("", "../x", "7d8f6a52"):
            with self.subTest(text), self.assertRaises(exception.InvalidValue):
                vgpu.device_uuid(text, vgpu.Slot(CARD, "nvidia-35", 0))


class TypeIdTest(unittest.TestCase):
    def test_what_can_be_one(self) -> None:
        for text in ("nvidia-35", "i915-GVTg_V5_4", "n" * 100):
            self.assertTrue(vgpu.is_type_id(text), text)
        for text in ("", ".", "..", "a/b", "a b", "-a", "a\n", "n" * 101, "é"):
            self.assertFalse(vgpu.is_type_id(text), text)


class SlotNumberTest(unittest.TestCase):
    def test_there_and_back(self) -> None:
        for gpu_instance, compute_instance, number in ((0, 0, 0), (9, 0, 900), (14, 7, 1407)):
            self.assertEqual(number, vgpu.slot_number(gpu_instance, compute_instance))
            self.assertEqual((gpu_instance, compute_instance), vgpu.of_slot(number))

    def test_no_two_have_one(self) -> None:
        every = [(gi, ci) for gi in range(120) for ci in range(120)]
        numbers = [vgpu.slot_number(*pair) for pair in every]
        known = [number for number in numbers if number is not None]
        self.assertEqual(len(known), len(set(known)))
        self.assertIsNone(vgpu.slot_number(1, 100))
        self.assertIsNone(vgpu.slot_number(10_000, 0))


FUNCTIONS = [PciAddress(0, 0x3B, index >> 3, index & 7) for index in range(4, 10)]

L40S = {
    f"nvidia-{number}": VGPUType(f"nvidia-{number}", memory_mib=gib * 1024)
    for number, gib in ((1147, 1), (1152, 8), (1155, 24), (1156, 48))
}
H200_MIG = {
    f"nvidia-{number}": VGPUType(f"nvidia-{number}", memory_mib=gib * 1024, slices=slices)
    for number, gib, slices in ((1414, 18, 1), (1417, 35, 1), (1421, 141, 7))
}


def mediated(
    types: Mapping[str, VGPUType], available: Mapping[str, int], made: Mapping[str, int]
) -> DividedCard:
    return DividedCard(types, {CARD: Parent(VGPUKind.MEDIATED, available, made)})


def profiled(types: Mapping[str, VGPUType], creatable: list[str], *made: str) -> DividedCard:
    """A card of six functions, the first of which have the types *made*"""
    parents = {}
    for function, type_id in zip(FUNCTIONS, [*made, *[""] * 6], strict=False):
        listed = {} if type_id else dict.fromkeys(creatable, 1)
        parents[function] = Parent(VGPUKind.TYPED, listed, {type_id: 1} if type_id else {})
    return DividedCard(types, parents)


def slot(type_id: str, number: int = 0, parent: PciAddress = CARD) -> Slot:
    return Slot(parent, type_id, number)


class MediatedTest(unittest.TestCase):
    def test_more_than_there_can_be(self) -> None:
        for per_card, total in ((4096, 4096), (4097, 3), (999_999_999, 3)):
            types = {"nvidia-63": VGPUType("nvidia-63", per_card=per_card)}
            card = mediated(types, {"nvidia-63": 3}, {})
            self.assertEqual(CardCapacity(total, 0, 3), vgpu_capacity.room(card, "nvidia-63"))
        shared = {"a": VGPUType("a", memory_mib=999_999_999), "b": VGPUType("b", memory_mib=1)}
        self.assertEqual(
            CardCapacity(2, 0, 2), vgpu_capacity.room(mediated(shared, {"b": 2}, {}), "b")
        )


class ProfilesTest(unittest.TestCase):
    def test_one_function_is_one_vgpu(self) -> None:
        card = DividedCard(L40S, {FUNCTIONS[0]: Parent(VGPUKind.TYPED, dict.fromkeys(L40S, 1), {})})
        self.assertEqual(CardCapacity(1, 0, 1), vgpu_capacity.room(card, "nvidia-1147"))

    def test_slices_of_a_mig_card_bind_where_memory_does_not(self) -> None:
        types = {**H200_MIG, "nvidia-1": VGPUType("nvidia-1", memory_mib=1024, slices=4)}
        card = profiled(types, list(types))
        self.assertEqual(6, vgpu_capacity.room(card, "nvidia-1414").free)  # of seven, six functions
        self.assertEqual(4, vgpu_capacity.room(card, "nvidia-1417").free)
        self.assertEqual(1, vgpu_capacity.room(card, "nvidia-1").free)

    def test_one_more_where_the_driver_says_so_and_no_more_is_known(self) -> None:
        """After a restart all that is listed may be the one type that the card has"""
        types = {"nvidia-1152": L40S["nvidia-1152"]}
        card = profiled(types, ["nvidia-1152"], "nvidia-1152")
        self.assertEqual(1, vgpu_capacity.room(card, "nvidia-1152").free)
        card = profiled({"nvidia-7": VGPUType("nvidia-7")}, ["nvidia-7"])
        self.assertEqual(1, vgpu_capacity.room(card, "nvidia-7").free)


@dataclasses.dataclass
class Driver:
    """A card's driver: what it lets be made, and what it says about that."""

    types: Mapping[str, VGPUType]
    memory_mib: int
    functions: list[PciAddress]
    alike: bool  # all vGPUs of a card must be of one type
    made: dict[Slot, None]

    def can_make(self, place: Slot) -> bool:
        used = sum(self._size(slot.type_id) for slot in self.made)
        if self.alike and any(slot.type_id != place.type_id for slot in self.made):
            return False
        if len(self.functions) > 1 and any(slot.parent == place.parent for slot in self.made):
            return False
        return place not in self.made and used + self._size(place.type_id) <= self.memory_mib

    def says(self) -> DividedCard:
        parents = {}
        for function in self.functions:
            made: dict[str, int] = {}
            for slot in self.made:
                if slot.parent == function:
                    made[slot.type_id] = made.get(slot.type_id, 0) + 1
            available = {type_id: self._available(function, type_id) for type_id in self.types}
            parents[function] = Parent(VGPUKind.MEDIATED, available, made)
        return DividedCard(self.types, parents)

    def _available(self, function: PciAddress, type_id: str) -> int:
        if not self.can_make(Slot(function, type_id, 999)):
            return 0
        used = sum(self._size(slot.type_id) for slot in self.made)
        room = (self.memory_mib - used) // self._size(type_id)
        return room if len(self.functions) == 1 else 1

    def _size(self, type_id: str) -> int:
        return self.types[type_id].memory_mib or 0


class BruteForceTest(unittest.TestCase):
    def test_what_is_free_can_be_made(self) -> None:
        """Random states of a card: whatever is drawn of what is free, and in whatever order
        it is made, the driver makes it. And as long as a driver could make something while nothing
        is promised, something is free."""
        draw = random.Random(20261121)
        for _ in range(fuzz.examples(1_000, 10_000)):
            driver = self._driver(draw)
            for type_id in driver.types:
                card = driver.says()
                could = any(driver.can_make(Slot(parent, type_id, 999)) for parent in card.parents)
                taken = list(driver.made)
                self.assertEqual(could, bool(vgpu_capacity.free_slots(card, type_id, taken)))
            promised = self._draw_all(draw, driver)
            draw.shuffle(promised)
            for place in promised:
                self.assertTrue(driver.can_make(place), (driver, promised))
                driver.made[place] = None

    def _draw_all(self, draw: random.Random, driver: Driver) -> list[Slot]:
        promised: list[Slot] = []
        for _ in range(draw.randint(0, 6)):
            type_id = draw.choice(list(driver.types))
            taken = [*driver.made, *promised]
            free = vgpu_capacity.free_slots(driver.says(), type_id, taken, promised)
            known = vgpu_capacity.room(driver.says(), type_id, taken, promised)
            self.assertGreaterEqual(known.reserved, 0)
            if free:
                promised.append(draw.choice(free))
        return promised

    def _driver(self, draw: random.Random) -> Driver:
        memory_mib = draw.choice((4, 6, 8, 12)) * 1024
        types = {}
        tells = draw.random() < 0.5
        for number in range(draw.randint(1, 3)):
            size = memory_mib // draw.choice((1, 2, 3, 4, 6))
            per_card = memory_mib // size if tells else None
            types[f"nvidia-{number}"] = VGPUType(f"nvidia-{number}", None, size, per_card=per_card)
        functions = draw.choice(([CARD], FUNCTIONS, FUNCTIONS[:2]))
        driver = Driver(types, memory_mib, list(functions), draw.random() < 0.5, {})
        for _ in range(draw.randint(0, 4)):
            place = Slot(draw.choice(functions), draw.choice(list(types)), draw.randint(0, 12))
            if driver.can_make(place):
                driver.made[place] = None
        return driver


# NVIDIA's vGPU user guide: by the GiB of a type how many a card carries of it where all vGPUs have
# one size, and where these are mixed. Of RTX PRO 6000 how many one of four GPU instances carries.
TABLES = {
    "L40S": {48: (1, 1), 24: (2, 2), 16: (3, 2), 12: (4, 4), 8: (6, 4), 6: (8, 8), 4: (12, 8)},
    "H100 NVL": {94: (1, 1), 47: (2, 2), 23: (4, 4), 15: (6, 4), 11: (8, 8), 6: (15, 8)},
    "DC-1": {24: (1, 0), 12: (2, 0), 8: (3, 0), 6: (4, 0), 4: (6, 0), 3: (8, 0)},
}
PLACES = 64  # of a card: each vGPU among mixed ones takes an equal share


@dataclasses.dataclass
class Filling:
    """A card's driver by NVIDIA's tables; *made* has each function's type, and where it is"""

    table: str
    mixed: bool
    tells: bool  # where vGPUs are
    made: dict[PciAddress, tuple[int, int]] = dataclasses.field(default_factory=dict)

    def can(self, gib: int) -> list[int]:
        """Where the driver may make one more"""
        equal, mixed = TABLES[self.table][gib]
        if self.table == "DC-1":
            there = [[size for size, at in self.made.values() if at == g] for g in range(4)]
            return [g for g in range(4) if len(there[g]) < equal and {gib}.issuperset(there[g])]
        if self.mixed:
            step = PLACES // mixed
            taken = {part for pair in self.made.values() for part in self._parts(*pair)}
            return [at for at in range(0, PLACES, step) if taken.isdisjoint(self._parts(gib, at))]
        sizes = {size for size, _ in self.made.values()}
        return [0] if sizes <= {gib} and len(self.made) < equal else []

    def _parts(self, gib: int, at: int) -> range:
        return range(at, at + PLACES // TABLES[self.table][gib][1])

    def says(self) -> DividedCard:
        types = {}
        for gib, (equal, mixed) in TABLES[self.table].items():
            facts = VGPUType(f"{gib}", None, gib * 1024, per_card=mixed if self.mixed else equal)
            if self.table == "DC-1":
                facts = dataclasses.replace(
                    facts, per_card=4 * equal, profile=47, per_instance=equal
                )
            elif self.mixed and self.tells:
                size = PLACES // mixed
                places = tuple(range(0, PLACES, size))
                facts = dataclasses.replace(facts, places=places, place_size=size)
            types[f"{gib}"] = facts
        listed = {f"{gib}": 1 for gib in TABLES[self.table] if self.can(gib)}
        parents = dict.fromkeys(FILLED, Parent(VGPUKind.TYPED, listed, {}))
        for function, (gib, at) in self.made.items():
            where = at if self.tells else None
            parents[function] = Parent(VGPUKind.TYPED, {}, {f"{gib}": 1}, {}, where, where)
        return DividedCard(types, parents)


FILLED = [PciAddress(0, 0x3B, index >> 3, index & 7) for index in range(4, 24)]


class FillingsTest(unittest.TestCase):
    def test_room_is_what_the_driver_then_makes(self) -> None:
        """Random fillings: what is counted as free is what can be made, wherever the driver puts
        it, and no more; as much where the driver tells the places of vGPUs."""
        draw = random.Random(20261130)
        for _ in range(fuzz.examples(500, 10_000)):
            table, mixed = draw.choice([(t, m) for t in TABLES for m in (False, True)])
            filling = Filling(table, mixed and table != "DC-1", draw.random() < 0.8)
            for _ in range(draw.randint(1, 8)):
                gib = draw.choice(list(TABLES[table]))
                card, made = filling.says(), dict(filling.made)
                taken = [Slot(function, f"{size}", 0) for function, (size, _) in made.items()]
                free = vgpu_capacity.free_slots(card, f"{gib}", taken)
                self.assertEqual(len(free), vgpu_capacity.room(card, f"{gib}", taken).free)
                most = 0
                for function in sorted(FILLED):
                    if function not in filling.made and (places := filling.can(gib)):
                        filling.made[function] = gib, draw.choice(places)
                        most += 1
                self.assertLessEqual(len(free), most, (filling, gib, made))
                self.assertEqual(bool(free), bool(most), (filling, gib, made))
                if filling.tells or not (filling.mixed or table == "DC-1"):
                    self.assertEqual(most, len(free), (filling, gib, made))
                filling.made = dict(draw.sample(list(filling.made.items()), len(filling.made)))
                for function in list(filling.made)[draw.randint(0, len(filling.made)) :]:
                    del filling.made[function]


class InstancesTest(unittest.TestCase):
    """They take nothing from one another, and none is made."""

    def setUp(self) -> None:
        super().setUp()
        types = {"1g": VGPUType("1g", per_card=3), "3g": VGPUType("3g", per_card=1)}
        numbers = {"1g": (900, 1000, 1100), "3g": (100,)}
        parent = Parent(VGPUKind.INSTANCE, {}, {"1g": 3, "3g": 1}, numbers)
        self.card = DividedCard(types, {CARD: parent})

    def test_room(self) -> None:
        taken = [slot("1g", 1000), slot("3g", 100)]
        self.assertEqual(CardCapacity(3, 1, 2), vgpu_capacity.room(self.card, "1g", taken))
        self.assertEqual(CardCapacity(3, 1, 2), vgpu_capacity.room(self.card, "1g", taken, taken))
        self.assertEqual(CardCapacity(1, 1, 0), vgpu_capacity.room(self.card, "3g", taken))
        self.assertEqual(CardCapacity(0, 0, 0), vgpu_capacity.room(self.card, "2g"))

    def test_slots(self) -> None:
        taken = [slot("1g", 1000)]
        free = (slot("1g", 900), slot("1g", 1100))
        self.assertEqual(free, vgpu_capacity.free_slots(self.card, "1g", taken))
        every = [slot("1g", 900), slot("1g", 1000), slot("1g", 1100), slot("3g", 100)]
        self.assertEqual(every, vgpu_capacity.all_instances(self.card))

    def test_those_that_share_memory(self) -> None:
        card = dataclasses.replace(self.card, sharing=frozenset({900, 1000}))
        self.assertEqual((slot("1g", 1100),), vgpu_capacity.free_slots(card, "1g"))
        self.assertEqual(CardCapacity(3, 1, 1), vgpu_capacity.room(card, "1g", [slot("1g", 1000)]))

    def test_a_card_that_somebody_has_whole(self) -> None:
        gpu = GPU(CARD, Product("10de", "2335"), class_code=0x030200)
        left = SharedCard(gpu, self.card).without(frozenset({CARD}))
        self.assertEqual(CardCapacity(3, 0, 0), left.room("1g", (), ()))
        self.assertEqual((), left.free_slots("1g", (), ()))


STATES = fuzz.examples(1_000, 10_000)


def cards(*rooms: int) -> dict[PciAddress, list[Slot]]:
    """Cards on the buses 0, 1, ... with that many free slots"""
    addresses = [PciAddress(0, bus, 0, 0) for bus in range(len(rooms))]
    return {
        address: [Slot(address, "nvidia-35", number) for number in range(room)]
        for address, room in zip(addresses, rooms, strict=True)
    }


def left(rooms: Sequence[int], count: int, order: Order) -> tuple[int, ...]:
    """The room of each card after the choice"""
    chosen = choose(cards(*rooms), count, order)
    buses = [slot.parent.bus for slot in chosen]
    return tuple(room - buses.count(bus) for bus, room in enumerate(rooms))


class ChoiceTest(unittest.TestCase):
    def test_more_than_there_is(self) -> None:
        for count in (4, -1):
            with self.subTest(count=count), self.assertRaises(ValueError):
                choose(cards(1, 2), count, Order.DEPTH_FIRST)


class ChoiceBruteForceTest(unittest.TestCase):
    """Against every way to take as many of small hosts."""

    def states(self) -> list[tuple[tuple[int, ...], int]]:
        draw = random.Random(20261121)
        states = []
        for _ in range(STATES):
            rooms = tuple(draw.randint(0, 3) for _ in range(draw.randint(1, 4)))
            states.append((rooms, draw.randint(0, sum(rooms))))
        return states

    def test_depth_first_leaves_the_largest_rooms(self) -> None:
        for rooms, count in self.states():
            by_room = sorted(range(len(rooms)), key=lambda card: (rooms[card], card))
            best = min(
                _ways(rooms, count),
                key=lambda way: (
                    [-room for room in sorted(way, reverse=True)],
                    [way[card] for card in by_room],
                ),
            )
            self.assertEqual(best, left(rooms, count, Order.DEPTH_FIRST), (rooms, count))

    def test_breadth_first_leaves_rooms_as_even_as_can_be(self) -> None:
        for rooms, count in self.states():
            best = min(_ways(rooms, count), key=lambda way: (sorted(way, reverse=True), way))
            self.assertEqual(best, left(rooms, count, Order.BREADTH_FIRST), (rooms, count))

    def test_one_at_a_time_is_the_same(self) -> None:
        for rooms, count in self.states()[:500]:
            for order in Order:
                whole = choose(cards(*rooms), count, order)
                for part in range(count):
                    self.assertEqual(whole[:part], choose(cards(*rooms), part, order))


def _ways(rooms: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """What every way to take *count* leaves"""
    every = itertools.product(*(range(room + 1) for room in rooms))
    return [way for way in every if sum(rooms) - sum(way) == count]
