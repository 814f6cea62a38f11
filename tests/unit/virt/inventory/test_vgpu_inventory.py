# SPDX-License-Identifier: Apache-2.0
"""Claims of vGPUs through Nova's own resource tracker, over a generated host."""

from __future__ import annotations

import dataclasses
import random
import unittest
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from nova import exception as nova_exception
from nova.compute import provider_tree, resource_tracker
from oslo_config import fixture as config_fixture
from oslo_utils import uuidutils

from nova_gpu.conf import CONF
from nova_gpu.core.flavor import request
from nova_gpu.core.model import DeliveryMode, GroupKey, PciAddress
from nova_gpu.core.vgpu import vgpu as values
from nova_gpu.core.vgpu import vgpu_group
from nova_gpu.core.vgpu.vgpu import DividedCard, Parent, Slot, VGPUKind, VGPUType
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.pci import direct_links
from nova_gpu.virt import card_sets
from nova_gpu.virt.delivery import deliveries, made_vgpus
from nova_gpu.virt.inventory import vgpu_cards, vgpu_inventory
from nova_gpu.virt.inventory.pool import Claimant
from nova_gpu.virt.inventory.vgpu_inventory import Rooms, Use
from nova_gpu.virt.usage import ledger
from nova_gpu.virt.usage.records import Records
from tests.fixtures import cards, pci, vgpu
from tests.fixtures.bases.host import HostTestCase

ADDRESSES = ("0000:3b:00.0", "0000:5e:00.0", "0000:af:00.0")
MOST = {type_.id: type_.available for type_ in vgpu.TESLA_P4}
NODE = "node1"
INSTANCE = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"

TYPES = {
    vgpu_type.id: vgpu_type
    for vgpu_type in (VGPUType("nvidia-1", memory_mib=1024), VGPUType("nvidia-2", memory_mib=2048))
}
BUSES = ("10", "20", "30")


class StockTestCase(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.config.config(group="gpu", nvml=False)
        vgpu.add_p4(self.host, *ADDRESSES)
        self.cards = self.new_cards()
        self.noted = ledger.Ledger()
        self.made = made_vgpus.MadeVGPUs(self.root / "gpu-vgpus")
        self.published = vgpu_inventory.VGPUInventory(
            *(self.cards, self.made, self.noted, card_sets.Sets()), unseparated=dict
        )
        self.tracker = resource_tracker.ResourceTracker("host", mock.Mock(), mock.Mock())
        self.tree = self.tracker.provider_tree = provider_tree.ProviderTree()
        self.tree.new_root(NODE, uuidutils.generate_uuid())

    def new_cards(self) -> vgpu_cards.VGPUCards:
        own = deliveries.Deliveries(
            self.host.roots, lambda _: None, libvirt_version=lambda: 10000000
        )
        return vgpu_cards.VGPUCards(self.host.roots, own)

    def look(self) -> Mapping[object, str]:
        whole = self.cards.read(self.host.gpus())
        self.cards.judge({})
        return whole

    def publish(self) -> None:
        self.published.publish(self.tree, NODE, "QEMU")

    def group(self, number: int) -> str:
        key = GroupKey("10de", "1bb3", DeliveryMode.VGPU, f"nvidia-{number}")
        return self.published.provider_uuids[key]

    def claim(self, number: int, amount: int = 1) -> list[str]:
        allocations = {self.group(number): {"resources": {"VGPU": amount}}}
        claimed = self.tracker._claim_resources(allocations)
        return [resource.identifier for resource in claimed]

    def inventory(self, number: int) -> tuple[int, int]:
        record = self.tree.data(self.group(number)).inventory["VGPU"]
        return record["total"], record["reserved"]


class TestStock(StockTestCase):
    def test_nothing_before_it_was_looked_at_to_the_end(self) -> None:
        self.publish()
        self.assertEqual({}, self.published.provider_uuids)
        self.assertEqual(3, len(self.cards.read(self.host.gpus())))
        self.publish()
        self.assertEqual((24, 24), self.inventory(63))
        self.assertRaises(nova_exception.ComputeResourcesUnavailable, self.claim, 63)
        self.cards.judge({})
        self.publish()
        self.assertEqual((24, 0), self.inventory(63))
        self.cards.reserve({a: cards.reasons("it failed") for a in self.cards.look.cards})
        self.publish()
        self.assertEqual((24, 24), self.inventory(63))

    def test_of_a_card_on_the_node_of_its_cell(self) -> None:
        """Mediated devices, of which Nova asks no affinity, are there if there are any."""
        for address, node in zip(ADDRESSES, (0, 0, 1), strict=True):
            (self.host.path(address) / "numa_node").write_text(f"{node}\n")
        self.look()
        self.publish()
        had = self.tracker._claim_resources({self.group(64): {"resources": {"VGPU": 1}}})
        assigned = self.tracker.assigned_resources[self.group(64)]["VGPU"]
        resources = self.tree.data(self.group(64)).resources["VGPU"]
        there = Claimant(request.of({}), cells=frozenset({1}))
        (held,) = self.published.held(had)
        self.assertIsNone(self.published.remote([held], there))
        message = "wants 1 GPUs on NUMA node 1, .* 12 GPUs are free, 8 on node 0, 4 on node 1"
        strict = dataclasses.replace(there, policy="legacy")
        self.assertRegex(self.published.remote([held], strict) or "", message)
        (new,) = (resources - assigned).improve(had, there).values()
        self.assertEqual(ADDRESSES[2], str(Slot.parse(new.identifier).parent))
        elsewhere = dataclasses.replace(there, cells=frozenset({0}))
        self.assertEqual({}, (resources - assigned).improve(had, elsewhere))

    def test_joined_cards_stay_together(self) -> None:
        """What a guest has of two that are joined is not exchanged for parts of a third."""
        nodes = dict(zip(map(PciAddress.parse, ADDRESSES), (0, 1, 1), strict=True))
        for address, node in nodes.items():
            (self.host.path(str(address)) / "numa_node").write_text(f"{node}\n")
        self.look()
        joined = frozenset([*nodes][:2])
        look = self.cards.look
        cards = {
            address: dataclasses.replace(card, joined=joined) if address in joined else card
            for address, card in look.cards.items()
        }
        self.cards.look = dataclasses.replace(look, cards=cards, groups=vgpu_group.groups(cards))
        self.publish()
        there = Claimant(request.of({}), cells=frozenset({1}))
        for count, expected in ((5, joined), (3, {*nodes} - joined)):
            had = self.tracker._claim_resources({self.group(64): {"resources": {"VGPU": count}}})
            assigned = self.tracker.assigned_resources[self.group(64)]["VGPU"]
            resources = self.tree.data(self.group(64)).resources["VGPU"]
            exchanged = (resources - assigned).improve(had, there)
            slots = [Slot.parse(exchanged.get(item, item).identifier) for item in had]
            with self.subTest(count):
                self.assertEqual(count, len({*slots}))
                self.assertLessEqual({slot.parent for slot in slots}, expected)

    def test_a_card_that_is_gone_while_an_instance_has_a_part_of_it(self) -> None:
        self.look()
        self.publish()
        slot = self.claim(64)[0]
        self.host.remove(ADDRESSES[0])
        counted = Records({INSTANCE: frozenset({(self.group(64), slot)})})
        self.noted.read_records(lambda guests: counted)
        self.look()
        self.publish()
        self.assertEqual((12, 3), self.inventory(64))
        self.tracker._check_resources(None)
        fresh = self.new_cards()
        self.cards.look, self.cards._read = fresh.look, fresh._read  # as after a restart
        self.look()
        self.publish()
        self.tracker._check_resources(None)
        self.assertEqual((9, 0), self.inventory(64))
        # Nobody is given a part of a card that is not there.
        self.assertEqual(8, len(self.claim(64, 8)))
        self.assertRaises(nova_exception.ComputeResourcesUnavailable, self.claim, 64)

    def test_what_somebody_else_has_made(self) -> None:
        vgpu.make(self.host, ADDRESSES[0], "nvidia-65")
        vgpu.set_available(self.host, ADDRESSES[0], {**dict.fromkeys(MOST, 0), "nvidia-65": 1})
        self.look()
        self.publish()
        self.assertEqual((6, 1), self.inventory(65))
        self.assertEqual((3, 1), self.inventory(66))
        self.config.config(group="gpu", vgpu_types=["nvidia-66"])
        self.cards._read = self.cards.look = vgpu_cards.Inspection()
        whole = {str(address): reason for address, reason in self.look().items()}
        self.assertEqual(set(ADDRESSES), set(whole))
        self.config.config(group="gpu", vgpu_types=[])
        self.cards._read = self.cards.look = vgpu_cards.Inspection()
        ((address, reason),) = self.look().items()
        self.assertEqual(ADDRESSES[0], str(address))
        self.assertIn("it has vGPUs of types that", str(*reason))

    def test_what_does_not_tell_how_it_is_divided_is_not_given_whole(self) -> None:
        types = self.host.path(ADDRESSES[1]) / "mdev_supported_types"
        types.rename(types.with_name("elsewhere"))
        types.symlink_to(types)  # nobody can list it
        self.cards._read = self.cards.look = vgpu_cards.Inspection()
        (reason,) = (why for address, why in self.look().items() if str(address) == ADDRESSES[1])
        self.assertIn("does not tell how it is divided", str(*reason))
        self.assertEqual(2, len(self.cards.look.cards))


class TestSets(StockTestCase):
    """Four MI300X with one function each; each pair that shares memory is on two NUMA nodes"""

    CARDS = tuple(f"0000:{bus}3:00.0" for bus in "0123")

    def setUp(self) -> None:
        super().setUp()
        for number, address in enumerate(self.CARDS):
            self.host.add_gpu(address, "1002", "74a1", class_code=0x120000, totalvfs=1)
            self.host.add_vf(address, address.replace(".0", ".1"))
            self.host.set_autoprobe(address, enabled=False)
            pci.write(self.host.path(address) / "numa_node", f"{number // 2}\n")
        pci.write(self.host.roots.sysfs / "module/gim/parameters/fb_sharing_mode", "2\n")
        groups = [" ".join(self.CARDS[::2]), " ".join(self.CARDS[1::2])]
        linked = direct_links.with_links(self.host.gpus(), direct_links.parse(groups))
        self.cards.read(linked)
        self.key = GroupKey("1002", "74a1", DeliveryMode.VGPU, "vf")

    def had(self, count: int = 2) -> tuple[list[Any], str | None]:
        """What an instance with so many gets, and why it does not start with them"""
        self.publish()
        group = self.published.provider_uuids[self.key]
        had = self.tracker._claim_resources({group: {"resources": {"VGPU": count}}})
        reason = self.published.apart(request.of({}), self.published.held(had), "QEMU")
        return list(had), reason

    def forget(self) -> None:
        self.tracker.assigned_resources.clear()
        self.noted._now = ledger.Snapshot()

    def test_an_instance_gets_one(self) -> None:
        self.cards.judge({})
        for function in ("0000:03:00.1", "0000:13:00.1"):
            had, _ = self.had(1)
            self.assertEqual([f"{function}/vf/0"], [h.identifier for h in had])
        error = nova_exception.ComputeResourcesUnavailable
        self.assertRaises(error, self.had, 1)
        self.forget()
        had, reason = self.had()
        self.assertIsNone(reason)
        self.assertEqual({"0000:03:00.1", "0000:23:00.1"}, {h.identifier[:12] for h in had})
        there = Claimant(request.of({}), cells=frozenset({0}))
        group = had[0].provider_uuid
        resources = self.tree.data(group).resources["VGPU"]
        pool = resources - self.tracker.assigned_resources[group]["VGPU"]
        self.assertEqual({}, pool.improve(had, there), "one of each set is nearer")
        faulty = map(PciAddress.parse, self.CARDS[2:])
        self.cards.judge(dict.fromkeys(faulty, cards.reasons("it failed")))
        self.forget()
        had, reason = self.had()
        self.assertEqual({"0000:03:00.1", "0000:13:00.1"}, {h.identifier[:12] for h in had})
        self.assertIn("no set has as many free ones", reason or "")


class TestRandomStates(StockTestCase):
    def test_no_card_is_promised_twice(self) -> None:
        """Claims of all types in any order, of which some are made before the next."""
        draw = random.Random(20261121)
        self.look()
        for order in ("depth_first", "breadth_first"):
            self.config.config(group="gpu", vgpu_order=order)
            for _ in range(20):
                self.one_state(draw, order)

    def test_what_is_offered_would_be_found(self) -> None:
        """Of cards, whole or in parts, that guests have or that are not clean yet"""
        draw = random.Random(20261129)
        self.look()
        cards = [*map(PciAddress.parse, ADDRESSES)]
        slots = [Slot(card, type_, n) for card in cards for type_ in MOST for n in range(2)]
        for _ in range(40):
            used, had = (draw.sample([*cards, *slots], draw.randint(0, 2)) for _ in range(2))
            self.noted._now = ledger.Snapshot()
            self.noted.was_used(used)
            self.noted.saw_domains({INSTANCE: frozenset(had)})
            self.publish()
            for number in range(63, 67):
                total, reserved = self.inventory(number)
                group = self.group(number)
                resources = self.tree.data(group).resources["VGPU"]
                slots_there = [Slot.parse(resource.identifier) for resource in resources]
                usable_slots = self.published.usable(group, slots_there, set())
                self.assertLessEqual(total - reserved, len(usable_slots), (number, used, had))

    def one_state(self, draw: random.Random, order: str) -> None:
        self.tracker.assigned_resources.clear()
        self.noted._now = ledger.Snapshot()
        self.publish()
        promised: dict[str, list[Slot]] = {address: [] for address in ADDRESSES}
        for _ in range(draw.randint(1, 12)):
            number, amount = draw.randint(63, 66), draw.randint(1, 3)
            rooms = self.rooms(promised, f"nvidia-{number}")
            if sum(rooms.values()) < amount:
                self.assertRaises(
                    nova_exception.ComputeResourcesUnavailable, self.claim, number, amount
                )
                continue
            for identifier in self.claim(number, amount):
                rooms = self.rooms(promised, f"nvidia-{number}")
                free = {address: room for address, room in rooms.items() if room}
                best = (min if order == "depth_first" else max)(free.values())
                slot = values.Slot.parse(identifier)
                self.assertEqual(best, rooms[str(slot.parent)], (identifier, rooms))
                self.assertNotIn(slot, promised[str(slot.parent)])
                promised[str(slot.parent)].append(slot)

    def rooms(self, promised: Mapping[str, list[Slot]], type_id: str) -> dict[str, int]:
        return {
            address: MOST[type_id] - len(slots) if {s.type_id for s in slots} <= {type_id} else 0
            for address, slots in promised.items()
        }


def functions(bus: str) -> list[PciAddress]:
    return [PciAddress.parse(f"0000:{bus}:00.{number}") for number in range(1, 5)]


def card(bus: str) -> SharedCard:
    available = dict.fromkeys(TYPES, 1)
    parents = {function: Parent(VGPUKind.TYPED, available, {}) for function in functions(bus)}
    gpu = cards.placed(f"0000:{bus}:00.0", 0)
    return SharedCard(gpu, DividedCard(TYPES, parents))


def alone(bus: str) -> SharedCard:
    """One of mediated devices of its own"""
    gpu = cards.placed(f"0000:{bus}:00.0", 0)
    parents = {gpu.address: Parent(VGPUKind.MEDIATED, {"nvidia-1": 3, "nvidia-2": 1}, {})}
    return SharedCard(gpu, DividedCard(TYPES, parents))


class RoomsTest(unittest.TestCase):
    def test_as_if_it_knew_nothing_whatever_happened_before(self) -> None:
        chance, rooms = random.Random(20261124), Rooms()
        for use, there in self._history(chance, 100):
            cached, fresh = (source.of(there, use) for source in (rooms, Rooms()))
            self.assertEqual(fresh, cached)
            for group in vgpu_group.groups({card.gpu.address: card for card in there}).values():
                self.assertEqual(Rooms().slots(group, fresh), rooms.slots(group, cached), group.key)

    def _history(self, chance: random.Random, steps: int) -> Iterator[tuple[Use, list[SharedCard]]]:
        there = [*map(card, BUSES), alone("40")]
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
                faulty = {there[number].gpu.address: cards.reasons("it is faulty")}
                unavailable: Any = chance.choice(({}, faulty))
                there[number] = dataclasses.replace(there[number], unavailable=unavailable)
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
