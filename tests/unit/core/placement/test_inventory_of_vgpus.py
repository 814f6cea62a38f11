# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

import os_traits

from nova_gpu.core import names
from nova_gpu.core.placement import group_traits, inventory
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.core.vgpu.vgpu_capacity import Room

STANDARD = frozenset(os_traits.get_traits())


class InventoryTest(unittest.TestCase):
    def test_what_is_left_is_what_can_be_had(self) -> None:
        # A card that is part full, one that another type has, one that is empty
        rooms = [Room(4, 1, 3), Room(4, 0, 0), Room(4, 0, 4)]
        found = inventory.inventory_of(rooms)[names.VGPU_RESOURCE_CLASS]
        self.assertEqual((12, 4, 12), (found["total"], found["reserved"], found["max_unit"]))
        self.assertEqual(sum(room.free for room in rooms), 12 - 4 - 1)

    def test_of_nothing_there_is_none(self) -> None:
        self.assertEqual({}, inventory.inventory_of([]))
        self.assertEqual({}, inventory.inventory_of([Room(0, 0, 0)]))


class TraitsTest(unittest.TestCase):
    def test_of_a_type_that_is_known(self) -> None:
        facts = VGPUType("nvidia-64", "GRID P4-2Q", 2048, 4, (1024, 768), 4)
        self.assertEqual(
            {
                "CUSTOM_GPU_VGPU_TYPE_NVIDIA_64",
                "CUSTOM_GPU_VGPU_TYPE_GRID_P4_2Q",
                "CUSTOM_GPU_HEADS_4",
                "HW_GPU_MAX_DISPLAY_HEADS_4",
                "HW_GPU_RESOLUTION_W320H240",
                "HW_GPU_RESOLUTION_W640H480",
                "HW_GPU_RESOLUTION_W800H600",
                "HW_GPU_RESOLUTION_W1024H600",
                "HW_GPU_RESOLUTION_W1024H768",
            },
            group_traits.of_type(facts, STANDARD),
        )

    def test_of_one_that_is_not(self) -> None:
        self.assertEqual(
            {"CUSTOM_GPU_VGPU_TYPE_NVIDIA_1148", "CUSTOM_GPU_HEADS_UNKNOWN"},
            group_traits.of_type(VGPUType("nvidia-1148"), STANDARD),
        )

    def test_of_heads_that_have_no_standard_trait(self) -> None:
        self.assertEqual(
            {"CUSTOM_GPU_VGPU_TYPE_A", "CUSTOM_GPU_HEADS_3"},
            group_traits.of_type(VGPUType("a", heads=3), STANDARD),
        )

    def test_are_the_drivers_own(self) -> None:
        self.assertTrue(names.is_own_trait(names.vgpu_type_trait("nvidia-64")))
        self.assertTrue(names.is_own_trait(names.trait(names.TRAIT_HEADS, None)))
