# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception, vgpu
from nova_gpu.core.model import PciAddress

CARD = PciAddress.parse("0000:3b:00.0")


class SlotTest(unittest.TestCase):
    def test_is_read_back(self) -> None:
        for type_id in ("nvidia-35", "i915-GVTg_V5_4", "nvidia-1148", "mdpy-xga"):
            for number in (0, 7, 31):
                slot = vgpu.Slot(CARD, type_id, number)
                with self.subTest(slot=str(slot)):
                    self.assertEqual(slot, vgpu.Slot.parse(str(slot)))

    def test_is_for_ever(self) -> None:
        # It stands in Nova's database.
        self.assertEqual("0000:3b:00.0/nvidia-35/0", str(vgpu.Slot(CARD, "nvidia-35", 0)))

    def test_nothing_else_is_one(self) -> None:
        for text in (
            "",
            "0000:3b:00.0",
            "0000:3b:00.0/nvidia-35",
            "0000:3b:00.0/nvidia-35/",
            "0000:3b:00.0/nvidia-35/00",
            "0000:3b:00.0/nvidia-35/-1",
            "0000:3b:00.0/nvidia-35/1/2",
            "0000:3b:00.0/nvidia-35/٣",
            "0000:3B:00.0/nvidia-35/0",
            "0000:3b:00.0/../0",
            "0000:3b:00.0//0",
            "3b:00.0/nvidia-35/0",
        ):
            with self.subTest(text), self.assertRaises(exception.InvalidValue):
                vgpu.Slot.parse(text)


class TypeIdTest(unittest.TestCase):
    def test_what_can_be_one(self) -> None:
        for text in ("nvidia-35", "i915-GVTg_V5_4", "n" * 100):
            self.assertTrue(vgpu.is_type_id(text), text)
        for text in ("", ".", "..", "a/b", "a b", "-a", "a\n", "n" * 101, "é"):
            self.assertFalse(vgpu.is_type_id(text), text)
