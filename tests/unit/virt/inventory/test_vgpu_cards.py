# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import MappingProxyType

from oslo_config import fixture as config_fixture

from nova_gpu.conf import CONF
from nova_gpu.core.availability import Source
from nova_gpu.core.vgpu.vgpu import Kind, Slot
from nova_gpu.host.vgpu import division, sriov
from nova_gpu.virt.delivery import ways
from nova_gpu.virt.inventory import vgpu_cards
from tests.fixtures import cards, profiling_kernel, vgpu
from tests.fixtures.bases.host import HostTestCase

CARD = "0000:82:00.0"
INSTANCE = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"


class TestProfiles(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        config = self.useFixture(config_fixture.Config(CONF))
        config.config(group="gpu", nvml=False)
        self.host.add_gpu(CARD, "10de", "26b9", totalvfs=4)
        self.functions = vgpu.add_functions(self.host, CARD, 4)
        self.kernel = self.useFixture(profiling_kernel.ProfilingKernel(self.host, vgpu.L40S))
        self.cards = self.new()
        self.look()

    def new(self, told: division.TypesByFunction = MappingProxyType({})) -> vgpu_cards.VGPUCards:
        own = ways.Ways(self.host.roots, lambda _: None, libvirt_version=lambda: 10000000)
        return vgpu_cards.VGPUCards(self.host.roots, own, told)

    def look(self) -> None:
        self.cards.read(self.host.gpus())
        self.cards.judge({})

    def slot(self, index: int, number: int = 1155) -> Slot:
        return Slot.parse(f"{self.functions[index]}/nvidia-{number}/0")

    def give(self, index: int, number: int) -> None:
        path = f"{self.host.devices}/{self.functions[index]}/nvidia/current_vgpu_type"
        self.kernel._written(path, str(number), 10)

    def rooms(self) -> dict[str, tuple[int, int]]:
        """Total and free of each type"""
        found = {}
        for group in self.cards.look.groups.values():
            (card,) = group.cards.values()
            room = card.room(group.facts.id, (), ())
            found[group.facts.id.removeprefix("nvidia-")] = (room.total, room.free)
        return found

    def test_a_function_is_made_when_it_has_the_type(self) -> None:
        slot = self.slot(1)
        self.assertIs(Kind.TYPED, self.cards.look.kind(slot))
        self.assertFalse(self.cards.look.is_made(slot, INSTANCE))
        self.give(1, 1155)
        self.cards.read_again(slot)
        self.assertTrue(self.cards.look.is_made(slot, INSTANCE))
        self.assertTrue(self.cards.look.is_made(slot, None))
        self.assertFalse(self.cards.look.is_made(self.slot(1, 1147), INSTANCE))
        self.assertFalse(self.cards.look.is_made(self.slot(2), INSTANCE))

    def test_a_function_with_which_no_guest_starts(self) -> None:
        failing = frozenset({self.slot(0).parent, self.slot(1).parent})
        reasons = cards.reasons("it fails")
        self.cards.reserve_parts(Source.STARTS, dict.fromkeys(failing, reasons))
        found = {"1145": (4, 2), "1147": (4, 2), "1155": (2, 2), "1156": (1, 1)}
        self.assertEqual(found, self.rooms())
        self.look()
        self.assertEqual(found, self.rooms())
        (card,) = self.cards.look.groups.popitem()[1].cards.values()
        free = card.free_slots(next(iter(card.card.types)), (), ())
        self.assertEqual(set(), failing & {slot.parent for slot in free})
        self.cards.reserve_parts(Source.STARTS, {})
        self.assertEqual((4, 4), self.rooms()["1145"])

    def test_types_that_the_driver_lists_no_longer(self) -> None:
        empty = {"1145": (4, 4), "1147": (4, 4), "1155": (2, 2), "1156": (1, 1)}
        self.assertEqual(empty, self.rooms())
        self.give(0, 1155)
        self.cards.read_again(self.slot(0))
        part_full = {"1145": (4, 0), "1147": (4, 0), "1155": (2, 1), "1156": (1, 0)}
        self.assertEqual(part_full, self.rooms())
        self.give(1, 1155)
        full = {**part_full, "1155": (2, 0)}
        self.look()
        self.assertEqual(full, self.rooms())
        # The next service knows what was noted with a vGPU, and another only what is there.
        noted = self.cards.names(self.slot(0))
        self.assertEqual("NVIDIA L40S-48Q", noted["nvidia-1156"])
        types = {each: sriov.named(each, name) for each, name in noted.items()}
        self.cards = self.new({self.slot(1).parent: types})
        self.look()
        self.assertEqual(full, self.rooms())
        self.cards = self.new()
        self.look()
        self.assertEqual({"1155": (0, 0)}, self.rooms())
        self.give(0, 0)
        self.give(1, 0)
        self.look()
        self.assertEqual(empty, self.rooms())
