# SPDX-License-Identifier: Apache-2.0
"""Claims of vGPUs through Nova's own resource tracker, over a generated host."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Mapping
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from nova.compute import provider_tree, resource_tracker
from oslo_config import fixture as config_fixture
from oslo_utils import uuidutils
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, DeliveryMode, GroupKey
from nova_gpu.core.scheduling import stats
from nova_gpu.core.vgpu import vgpu as values
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.pci import discovery, selection
from nova_gpu.virt.delivery import made_vgpus, ways
from nova_gpu.virt.fabric import fabric
from nova_gpu.virt.inventory import offer, vgpu_cards, vgpu_stock
from nova_gpu.virt.usage import ledger, snapshot
from nova_gpu.virt.usage.records import Records
from tests.fixtures import hosts, vgpu

ADDRESSES = ("0000:3b:00.0", "0000:5e:00.0", "0000:af:00.0")
MOST = {type_.id: type_.available for type_ in vgpu.TESLA_P4}
NODE = "node1"
INSTANCE = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"


class StockTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.config.config(group="gpu", nvml=False)
        self.host = hosts.Host(root)
        for address in ADDRESSES:
            self.host.add_gpu(address, "10de", "1bb3")
            vgpu.add_types(self.host, address, vgpu.TESLA_P4)
        self.cards = self.new_cards()
        self.noted = ledger.Ledger()
        self.made = made_vgpus.MadeVGPUs(root / "gpu-vgpus")
        self.stock = vgpu_stock.VGPUStock(
            *(self.cards, self.made, self.noted), fabric.Fabric(self.host.roots, None)
        )
        self.tracker = resource_tracker.ResourceTracker("host", mock.Mock(), mock.Mock())
        self.tree = self.tracker.provider_tree = provider_tree.ProviderTree()
        self.tree.new_root(NODE, uuidutils.generate_uuid())

    def new_cards(self) -> vgpu_cards.VGPUCards:
        own = ways.Ways(self.host.roots, lambda _: None, libvirt_version=lambda: 10000000)
        return vgpu_cards.VGPUCards(self.host.roots, own)

    def found(self) -> tuple[GPU, ...]:
        selected = selection.Selection.parse(["10de"], [], [])
        return discovery.discover(self.host.roots, selected, {}, dict)

    def look(self) -> Mapping[object, str]:
        whole = self.cards.read(self.found())
        self.cards.judge(offer.Ailments())
        return whole

    def publish(self) -> None:
        self.stock.publish(self.tree, NODE, "QEMU")

    def group(self, number: int) -> str:
        key = GroupKey("10de", "1bb3", DeliveryMode.VGPU, f"nvidia-{number}")
        return self.stock.provider_uuids[key]

    def claim(self, number: int, amount: int = 1) -> list[str]:
        allocations = {self.group(number): {"resources": {"VGPU": amount}}}
        claimed = self.tracker._claim_resources(allocations)
        return [each.identifier for each in claimed]

    def inventory(self, number: int) -> tuple[int, int]:
        record = self.tree.data(self.group(number)).inventory["VGPU"]
        return record["total"], record["reserved"]


class TestStock(StockTestCase):
    def test_nothing_before_it_was_looked_at_to_the_end(self) -> None:
        self.publish()
        self.assertEqual({}, self.stock.provider_uuids)
        self.assertEqual(3, len(self.cards.read(self.found())))
        self.publish()
        self.assertEqual((24, 24), self.inventory(63))
        self.assertRaises(nova_exception.ComputeResourcesUnavailable, self.claim, 63)
        self.cards.judge(offer.Ailments())
        self.publish()
        self.assertEqual((24, 0), self.inventory(63))
        self.cards.withhold("it failed")
        self.publish()
        self.assertEqual((24, 24), self.inventory(63))

    def test_a_card_that_came_since(self) -> None:
        self.look()
        self.host.add_gpu("0000:d8:00.0", "10de", "1bb3")
        vgpu.add_types(self.host, "0000:d8:00.0", vgpu.TESLA_P4)
        self.cards.read(self.found())
        self.publish()
        self.assertEqual((32, 8), self.inventory(63))
        self.cards.judge(offer.Ailments())
        self.publish()
        self.assertEqual((32, 0), self.inventory(63))

    def test_what_was_not_removed_yet(self) -> None:
        self.look()
        slots = [Slot.parse(f"{ADDRESSES[0]}/nvidia-66/0")]
        self.noted.was_used(slots)
        self.publish()
        self.assertEqual((3, 1), self.inventory(66))
        self.assertEqual([f"{ADDRESSES[1]}/nvidia-66/0"], self.claim(66))
        self.noted.cleaned(slots[0])
        self.assertEqual([f"{ADDRESSES[0]}/nvidia-66/0"], self.claim(66))

    def test_types_that_share_a_card(self) -> None:
        self.look()
        self.publish()
        self.assertEqual([f"{ADDRESSES[0]}/nvidia-64/0"], self.claim(64))
        self.assertEqual([f"{ADDRESSES[1]}/nvidia-63/0"], self.claim(63))
        self.assertEqual([f"{ADDRESSES[2]}/nvidia-66/0"], self.claim(66))
        self.assertRaises(nova_exception.ComputeResourcesUnavailable, self.claim, 65)
        self.publish()
        self.assertEqual((12, 8), self.inventory(64))
        self.assertEqual((6, 6), self.inventory(65))
        self.assertEqual((3, 2), self.inventory(66))

    def test_what_the_scheduler_reads(self) -> None:
        self.assertEqual(stats.UNDIVIDED, self.stock.divided())
        self.look()
        self.noted.was_used([Slot.parse(f"{ADDRESSES[0]}/nvidia-66/0")])
        named = frozenset({Slot.parse(ADDRESSES[1] + "/nvidia-64/0").parent})
        vgpus = {63: 16, 64: 8, 65: 4, 66: 2}
        free = tuple((f"nvidia-{n}", self.name(n), vgpus[n]) for n in vgpus)
        facts = ((1024, 4), (2048, 4), (4096, 4), (8192, 4))
        self.assertEqual(stats.Divided(3, 2, free, facts), self.stock.divided())
        self.noted.saw_domains({INSTANCE: named})
        free = tuple((f"nvidia-{n}", self.name(n), vgpus[n] // 2) for n in vgpus)
        self.assertEqual(stats.Divided(3, 1, free, facts), self.stock.divided())

    def name(self, number: int) -> str | None:
        return next(each.name for each in vgpu.TESLA_P4 if each.id == f"nvidia-{number}")

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
        self.cards._read = self.cards.look = vgpu_cards.Look()
        whole = {str(address): reason for address, reason in self.look().items()}
        self.assertEqual(set(ADDRESSES), set(whole))
        self.config.config(group="gpu", vgpu_types=[])
        self.cards._read = self.cards.look = vgpu_cards.Look()
        ((address, reason),) = self.look().items()
        self.assertEqual(ADDRESSES[0], str(address))
        self.assertIn("somebody has made vGPUs of it", reason)

    def test_what_does_not_tell_how_it_is_divided_is_not_given_whole(self) -> None:
        types = self.host.path(ADDRESSES[1]) / "mdev_supported_types"
        types.rename(types.with_name("elsewhere"))
        types.symlink_to(types)  # nobody can list it
        self.cards._read = self.cards.look = vgpu_cards.Look()
        (reason,) = (why for address, why in self.look().items() if str(address) == ADDRESSES[1])
        self.assertIn("does not tell how it is divided", reason)
        self.assertEqual(2, len(self.cards.look.cards))


class TestRandomStates(StockTestCase):
    def test_no_card_is_promised_twice(self) -> None:
        """Claims of all types in any order, of which some are made before the next."""
        draw = random.Random(20261121)
        self.look()
        for order in ("depth_first", "breadth_first"):
            self.config.config(group="gpu", vgpu_order=order)
            for _ in range(60):
                self.one_state(draw, order)

    def one_state(self, draw: random.Random, order: str) -> None:
        self.tracker.assigned_resources.clear()
        self.noted._now = snapshot.Snapshot()
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
