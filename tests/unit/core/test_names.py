# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

import os_resource_classes

from nova_gpu.core import names
from nova_gpu.core.model import DeliveryMode, GroupKey

LXC = GroupKey("10de", "1091", DeliveryMode.LXC)
PCI = GroupKey("10de", "1091", DeliveryMode.PCI)
VGPU = GroupKey("10de", "1bb3", DeliveryMode.VGPU, "nvidia-64")


class ResourceClassTest(unittest.TestCase):
    def test_is_placements(self) -> None:
        self.assertEqual(os_resource_classes.PGPU, names.RESOURCE_CLASS)
        self.assertEqual(os_resource_classes.VGPU, names.VGPU_RESOURCE_CLASS)


class ProviderNameTest(unittest.TestCase):
    def test_is_for_ever(self) -> None:
        self.assertEqual("compute1_gpu_10de_1091_lxc", names.provider_name("compute1", LXC))
        self.assertEqual("compute1_gpu_10de_1091_pci", names.provider_name("compute1", PCI))
        self.assertEqual(
            "compute1_gpu_10de_1bb3_vgpu_nvidia-64", names.provider_name("compute1", VGPU)
        )

    def test_fits_placement_and_stays_unique(self) -> None:
        nodes = ["n" * 200 + end for end in ("a", "b")]
        longest = VGPU._replace(vgpu_type="n" * 100)
        keys = (LXC, PCI, longest)
        found = [names.provider_name(node, key) for node in nodes for key in keys]
        self.assertEqual(6, len(set(found)))
        for name in found:
            self.assertLessEqual(len(name), 200)

    def test_long_name_is_for_ever(self) -> None:
        self.assertEqual(
            "n" * 165 + "_291c4194382c6bd5_gpu_10de_1091_lxc", names.provider_name("n" * 201, LXC)
        )

    def test_is_cut_no_earlier_than_it_must_be(self) -> None:
        node = "n" * (200 - len("_gpu_10de_1091_lxc"))
        self.assertEqual(node + "_gpu_10de_1091_lxc", names.provider_name(node, LXC))

    def test_is_read_back(self) -> None:
        odd = VGPU._replace(vgpu_type="i915-GVTg_V5_4_gpu_10de_1091_lxc")
        nodes = ("compute1", "node_gpu_10de_1091_lxc", "node_gpu_10de_1bb3_vgpu_a", "n" * 250)
        for node in nodes:
            for key in (LXC, PCI, VGPU, odd):
                name = names.provider_name(node, key)
                with self.subTest(name=name):
                    self.assertEqual(key, names.parse_provider_name(node, name))

    def test_other_providers_are_not_ours(self) -> None:
        for name in (
            "compute1",
            "compute2_gpu_10de_1091_lxc",
            "compute1_gpu_10de_1091_lxc_more",
            "compute1_gpu_10DE_1091_lxc",
            "compute1_gpu_10de_1091_pgpu",
            "compute1_gpu_10de_1091_vgpu",
            "compute1_gpu_10de_1091_vgpu_",
            "compute2_gpu_10de_1091_vgpu_nvidia-64",
            "compute1_0000:88:00.0",
        ):
            with self.subTest(name=name):
                self.assertIsNone(names.parse_provider_name("compute1", name))


class TraitsTest(unittest.TestCase):
    def test_words_become_traits(self) -> None:
        for trait, expected in (
            (names.trait(names.TRAIT_ARCHITECTURE, "fermi"), "CUSTOM_GPU_ARCH_FERMI"),
            (names.trait(names.TRAIT_ARCHITECTURE, "Xe-HPC"), "CUSTOM_GPU_ARCH_XE_HPC"),
            (names.trait(names.TRAIT_ARCHITECTURE, None), "CUSTOM_GPU_ARCH_UNKNOWN"),
            (names.trait(names.TRAIT_MODEL, "Tesla M2090"), "CUSTOM_GPU_MODEL_TESLA_M2090"),
            (names.trait(names.TRAIT_MODEL, "H100 [SXM5 80GB]"), "CUSTOM_GPU_MODEL_H100_SXM5_80GB"),
            (names.trait(names.TRAIT_HYPERVISOR, "LXC"), "CUSTOM_GPU_HYPERVISOR_LXC"),
        ):
            self.assertEqual(expected, trait)

    def test_profiles_with_and_without_media_extensions(self) -> None:
        for name, expected in (
            ("1g.24gb", "1G_24GB"),
            ("1g.24gb+me", "1G_24GB_ME"),
            ("1g.24gb-me", "1G_24GB_MINUS_ME"),
            ("1c.2g.48gb-me", "1C_2G_48GB_MINUS_ME"),
            ("Tesla V100-SXM2-32GB-LS", "TESLA_V100_SXM2_32GB_LS"),
        ):
            trait = names.vgpu_type_trait(name)
            self.assertEqual(f"{names.TRAIT_VGPU_TYPE}{expected}", trait)
            self.assertEqual(names.word(name), names.word(names.word(name)))

    def test_unknown_is_nobodys_word(self) -> None:
        for value in (None, "", "unknown", "UNKNOWN", "--"):
            with self.subTest(value=value):
                self.assertIsNone(names.word(value))
