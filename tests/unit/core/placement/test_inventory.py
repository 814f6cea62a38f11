# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import names
from nova_gpu.core.placement import inventory
from nova_gpu.core.vgpu.vgpu_capacity import Room


class InventoryTest(unittest.TestCase):
    def test_whole_cards(self) -> None:
        units = {"min_unit": 1, "max_unit": 8, "step_size": 1, "allocation_ratio": 1.0}
        self.assertEqual({"PGPU": {"total": 8, "reserved": 1} | units}, inventory.inventory(8, 1))

    def test_room_in_one_guest(self) -> None:
        for most, max_unit in ((3, 3), (9, 8), (0, 1)):
            found = inventory.inventory(8, 0, most=most)["PGPU"]
            self.assertEqual((8, max_unit), (found["total"], found["max_unit"]))


class VGPUInventoryTest(unittest.TestCase):
    def test_what_is_left_is_what_can_be_had(self) -> None:
        # A card that is part full, one that another type has, one that is empty
        rooms = [Room(4, 1, 3), Room(4, 0, 0), Room(4, 0, 4)]
        found = inventory.inventory_of(rooms)[names.VGPU_RESOURCE_CLASS]
        self.assertEqual((12, 4, 12), (found["total"], found["reserved"], found["max_unit"]))
        self.assertEqual(sum(room.free for room in rooms), 12 - 4 - 1)

    def test_of_nothing_there_is_none(self) -> None:
        self.assertEqual({}, inventory.inventory_of([]))
        self.assertEqual({}, inventory.inventory_of([Room(0, 0, 0)]))
