# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

import os_traits

from nova_gpu.core.model import Product
from nova_gpu.core.placement import group_traits
from nova_gpu.core.topology.topology import Islands
from nova_gpu.core.vgpu.vgpu import VGPUType

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
        found = group_traits.of_group(FERMI, "LXC", present)
        self.assertEqual({"CUSTOM_RACK_7", "OWNER_NOVA"}, found & present)


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
