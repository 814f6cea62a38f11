# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import unittest

from nova_gpu.core import device, exception, names
from nova_gpu.core.model import DeliveryMode, GroupKey, PciAddress
from nova_gpu.core.vgpu.vgpu import Slot

CARD, OTHER = PciAddress.parse("0000:3b:00.0"), PciAddress.parse("0000:af:00.0")


def slot(number: int, card: PciAddress = CARD, type_id: str = "nvidia-63") -> Slot:
    return Slot(card, type_id, number)


class TestCardOf(unittest.TestCase):
    def test_functions(self) -> None:
        cards = [CARD, OTHER, PciAddress.parse("0001:3b:00.0")]
        for text, card in (
            ("0000:3b:00.0", CARD),
            ("0000:3b:04.3", CARD),
            ("0000:3c:00.1", CARD),
            ("0000:3d:00.1", None),
            ("0000:3a:1f.7", None),
            ("0001:af:00.4", None),
            ("0000:b0:00.0", OTHER),
        ):
            with self.subTest(text):
                self.assertEqual(card, device.card_of(PciAddress.parse(text), cards))


class TestClashing(unittest.TestCase):
    def test_a_card_and_its_part(self) -> None:
        self.assertEqual({CARD}, device.clashing([CARD, OTHER], [slot(0)]))
        self.assertEqual({slot(0)}, device.clashing([slot(0), slot(0, OTHER)], [CARD]))

    def test_a_mig_instance_of_another_profile(self) -> None:
        """The same nodes lead to it, whatever it was when somebody got it."""
        was, now = slot(100, type_id="3g.71gb"), slot(100, type_id="1g.18gb+me")
        others = [slot(101, type_id="1g.18gb"), slot(100, OTHER, "1g.18gb")]
        self.assertEqual({now}, device.clashing([now, *others], [was]))


class PciAddressTest(unittest.TestCase):
    def test_what_is_no_address(self) -> None:
        for text in ("", "88:00.0", "0000:88:00", "0000:88:20.0", "0000:88:00.8", "0000:88:00.0 "):
            with (
                self.subTest(text=text),
                self.assertRaisesRegex(exception.InvalidPciAddress, "0000:88:00.0"),
            ):
                PciAddress.parse(text)


LXC = GroupKey("10de", "1091", DeliveryMode.LXC)
PCI = GroupKey("10de", "1091", DeliveryMode.PCI)
BOARD = PCI._replace(board="10de:157e")
VGPU = GroupKey("10de", "1bb3", DeliveryMode.VGPU, "nvidia-64")


class ProviderNameTest(unittest.TestCase):
    def test_is_for_ever(self) -> None:
        """It is cut no earlier than it must be."""
        longest = "n" * (200 - len("_gpu_10de_1091_lxc"))
        for node, key, name in (
            ("compute1", LXC, "compute1_gpu_10de_1091_lxc"),
            ("compute1", PCI, "compute1_gpu_10de_1091_pci"),
            ("compute1", BOARD, "compute1_gpu_10de_1091_10de_157e_pci"),
            ("compute1", VGPU, "compute1_gpu_10de_1bb3_vgpu_nvidia-64"),
            ("n" * 201, LXC, "n" * 165 + "_291c4194382c6bd5_gpu_10de_1091_lxc"),
            (longest, LXC, longest + "_gpu_10de_1091_lxc"),
        ):
            self.assertEqual(name, names.provider_name(node, key))

    def test_fits_placement_and_stays_unique(self) -> None:
        nodes = ["n" * 200 + end for end in ("a", "b")]
        longest = VGPU._replace(vgpu_type="n" * 100)
        keys = (LXC, PCI, longest)
        provider_names = [names.provider_name(node, key) for node in nodes for key in keys]
        self.assertEqual(6, len(set(provider_names)))
        for name in provider_names:
            self.assertLessEqual(len(name), 200)

    def test_is_read_back(self) -> None:
        odd = VGPU._replace(vgpu_type="i915-GVTg_V5_4_gpu_10de_1091_lxc")
        nodes = ("compute1", "node_gpu_10de_1091_lxc", "node_gpu_10de_1bb3_vgpu_a", "n" * 250)
        for node in nodes:
            for key in (LXC, PCI, BOARD, VGPU, odd):
                name = names.provider_name(node, key)
                with self.subTest(name=name):
                    self.assertEqual(key, names.parse_provider_name(node, name))

    def test_other_providers_are_not_ours(self) -> None:
        own = "compute1_gpu_10de_1091_"
        for name in (
            *("compute1", "compute1_0000:88:00.0", "compute1_gpu_10DE_1091_lxc"),
            *("compute2_gpu_10de_1091_lxc", "compute2_gpu_10de_1091_vgpu_nvidia-64"),
            *(f"{own}{mode}" for mode in ("lxc_more", "pgpu", "vgpu", "vgpu_", "10de_pci")),
        ):
            with self.subTest(name=name):
                self.assertIsNone(names.parse_provider_name("compute1", name))


class TraitsTest(unittest.TestCase):
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
