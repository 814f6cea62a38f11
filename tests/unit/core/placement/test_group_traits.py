# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

import os_traits

from nova_gpu.core import names
from nova_gpu.core.model import Product
from nova_gpu.core.placement import group_traits, inventory
from nova_gpu.core.topology.topology import Islands
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.core.vgpu.vgpu_capacity import CardCapacity

STANDARD = frozenset(os_traits.get_traits())
FERMI = Product("10de", "1091", "Tesla M2090", "fermi", 6144, (2, 0))


class TraitsTest(unittest.TestCase):
    def test_what_a_card_is(self) -> None:
        self.assertEqual(
            {
                "CUSTOM_GPU",
                "CUSTOM_GPU_ARCH_FERMI",
                "CUSTOM_GPU_HYPERVISOR_LXC",
                "CUSTOM_GPU_MODEL_TESLA_M2090",
                "CUSTOM_GPU_MEMORY_MIB_6144",
                "CUSTOM_GPU_NUMA_ISLAND_4",
                "CUSTOM_GPU_NVLINK_ISLAND_2",
                os_traits.HW_GPU_CUDA_COMPUTE_CAPABILITY_V2_0,
            },
            group_traits.of_group(FERMI, "LXC", (), Islands(numa=4, nvlink=2)),
        )

    def test_what_they_are_near_to(self) -> None:
        present = {"CUSTOM_GPU_NEAR_NVME"}
        traits = group_traits.of_group(FERMI, "LXC", present, near=("nic",))
        self.assertEqual(
            ["CUSTOM_GPU_NEAR_NIC"],
            [trait for trait in traits if trait.startswith(names.TRAIT_NEAR)],
        )

    def test_what_is_not_known(self) -> None:
        self.assertEqual(
            {
                "CUSTOM_GPU",
                "CUSTOM_GPU_ARCH_UNKNOWN",
                "CUSTOM_GPU_HYPERVISOR_QEMU",
                "CUSTOM_GPU_MODEL_UNKNOWN",
                "CUSTOM_GPU_MEMORY_MIB_UNKNOWN",
                "CUSTOM_GPU_NUMA_ISLAND_1",
                "CUSTOM_GPU_NVLINK_ISLAND_1",
            },
            group_traits.of_group(Product("10de", "ffff"), "QEMU", ()),
        )

    def test_others_are_kept_and_old_own_ones_are_not(self) -> None:
        old = {"CUSTOM_GPU_ARCH_UNKNOWN", "CUSTOM_GPU_MODEL_X", "CUSTOM_GPU_MEMORY_MIB_1"}
        old |= {"CUSTOM_GPU_NUMA_ISLAND_8", "CUSTOM_GPU_NVLINK_ISLAND_8"}
        present = {"CUSTOM_RACK_7", "OWNER_NOVA"} | old
        traits = group_traits.of_group(FERMI, "LXC", present)
        self.assertEqual({"CUSTOM_RACK_7", "OWNER_NOVA"}, traits & present)


class VGPUTraitsTest(unittest.TestCase):
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


class InventoryTest(unittest.TestCase):
    def test_whole_cards(self) -> None:
        units = {"min_unit": 1, "max_unit": 8, "step_size": 1, "allocation_ratio": 1.0}
        self.assertEqual({"PGPU": {"total": 8, "reserved": 1} | units}, inventory.inventory(8, 1))

    def test_room_in_one_guest(self) -> None:
        for most, max_unit in ((3, 3), (9, 8), (0, 1)):
            amounts = inventory.inventory(8, 0, most=most)["PGPU"]
            self.assertEqual((8, max_unit), (amounts["total"], amounts["max_unit"]))


class VGPUInventoryTest(unittest.TestCase):
    def test_what_is_left_is_what_can_be_had(self) -> None:
        # A card that is part full, one that another type has, one that is empty
        rooms = [CardCapacity(4, 1, 3), CardCapacity(4, 0, 0), CardCapacity(4, 0, 4)]
        amounts = inventory.inventory_of(rooms)[names.VGPU_RESOURCE_CLASS]
        self.assertEqual((12, 4, 12), (amounts["total"], amounts["reserved"], amounts["max_unit"]))
        self.assertEqual(sum(room.free for room in rooms), 12 - 4 - 1)

    def test_of_nothing_there_is_none(self) -> None:
        self.assertEqual({}, inventory.inventory_of([]))
        self.assertEqual({}, inventory.inventory_of([CardCapacity(0, 0, 0)]))
