# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import unittest

from nova_gpu.core import device
from nova_gpu.core.model import DeliveryMode, GroupKey, PciAddress
from nova_gpu.core.vgpu.vgpu import Slot

CARD, OTHER = PciAddress.parse("0000:3b:00.0"), PciAddress.parse("0000:af:00.0")


def slot(number: int, card: PciAddress = CARD, type_id: str = "nvidia-63") -> Slot:
    return Slot(card, type_id, number)


class TestParse(unittest.TestCase):
    def test_both_kinds(self) -> None:
        for each, resource_class in ((CARD, "PGPU"), (slot(3), "VGPU")):
            self.assertEqual(each, device.parse(str(each)))
            self.assertEqual(resource_class, device.resource_class(each))


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


class TestSorted(unittest.TestCase):
    def test_whole_cards_and_slots(self) -> None:
        both = [CARD, slot(1, OTHER), slot(0)]
        self.assertEqual({CARD}, device.cards(both))
        self.assertEqual({slot(0), slot(1, OTHER)}, device.slots(both))
        self.assertEqual([CARD, OTHER, CARD], [device.function(each) for each in both])

    def test_what_a_group_is_of(self) -> None:
        for mode, expected in (("pci", "PGPU"), ("lxc", "PGPU"), ("vgpu", "VGPU")):
            key = GroupKey("10de", "2335", DeliveryMode(mode))
            self.assertEqual(expected, device.resource_class_of(key))

    def test_how_it_is_given(self) -> None:
        modes = [device.mode(CARD, "lxc"), device.mode(CARD, "kvm"), device.mode(slot(0), "lxc")]
        self.assertEqual([DeliveryMode.LXC, DeliveryMode.PCI, DeliveryMode.VGPU], modes)


class TestClashing(unittest.TestCase):
    def test_a_card_and_its_part(self) -> None:
        self.assertEqual({CARD}, device.clashing([CARD, OTHER], [slot(0)]))
        self.assertEqual({slot(0)}, device.clashing([slot(0), slot(0, OTHER)], [CARD]))

    def test_a_mig_instance_of_another_profile(self) -> None:
        """The same nodes lead to it, whatever it was when somebody got it."""
        was, now = slot(100, type_id="3g.71gb"), slot(100, type_id="1g.18gb+me")
        others = [slot(101, type_id="1g.18gb"), slot(100, OTHER, "1g.18gb")]
        self.assertEqual({now}, device.clashing([now, *others], [was]))
