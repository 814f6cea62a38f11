# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
import uuid

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu import vgpu

CARD = PciAddress.parse("0000:3b:00.0")


class SlotTest(unittest.TestCase):
    def test_is_for_ever(self) -> None:
        # It stands in Nova's database.
        self.assertEqual("0000:3b:00.0/nvidia-35/0", str(vgpu.Slot(CARD, "nvidia-35", 0)))

    def test_of_a_device_that_others_made(self) -> None:
        """It is read back, and the device has the same uuid whoever has it."""
        made = "4b20d080-1b54-4048-85b3-a6a62d165c01"
        slot = vgpu.Slot.of_device(CARD, "nvidia-35", made.upper())
        self.assertEqual(f"0000:3b:00.0/nvidia-35/{made}", str(slot))
        self.assertEqual(slot, vgpu.Slot.parse(str(slot)))
        self.assertEqual(made, vgpu.device_uuid(str(uuid.uuid4()), slot))
        self.assertIsNone(vgpu.Slot(CARD, "nvidia-35", 999_999_999).device)

    def test_nothing_else_is_one(self) -> None:
        for text in (
            "0000:3b:00.0/nvidia-35/1000000000",
            "0000:3b:00.0/nvidia-35/00000000-0000-0000-0000-000000000001",
            "0000:3b:00.0/nvidia-35/4B20D080-1b54-4048-85b3-a6a62d165c01",
            "0000:3b:00.0/nvidia-35/4b20d0801b54404885b3a6a62d165c01",
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


class DeviceUuidTest(unittest.TestCase):
    def test_is_for_ever(self) -> None:
        # After the host has booted the device is made with it again, and libvirt's domain names it.
        instance = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
        slot = vgpu.Slot(CARD, "nvidia-35", 0)
        self.assertEqual("8bd15cae-e882-51a9-b82a-5f9d66ee46d3", vgpu.device_uuid(instance, slot))
        self.assertEqual(vgpu.device_uuid(instance.upper(), slot), vgpu.device_uuid(instance, slot))

    def test_of_an_instance_only(self) -> None:
        for text in ("", "../x", "7d8f6a52"):
            with self.subTest(text), self.assertRaises(exception.InvalidValue):
                vgpu.device_uuid(text, vgpu.Slot(CARD, "nvidia-35", 0))


class TypeIdTest(unittest.TestCase):
    def test_what_can_be_one(self) -> None:
        for text in ("nvidia-35", "i915-GVTg_V5_4", "n" * 100):
            self.assertTrue(vgpu.is_type_id(text), text)
        for text in ("", ".", "..", "a/b", "a b", "-a", "a\n", "n" * 101, "é"):
            self.assertFalse(vgpu.is_type_id(text), text)


class SlotNumberTest(unittest.TestCase):
    def test_there_and_back(self) -> None:
        for gpu_instance, compute_instance, number in ((0, 0, 0), (9, 0, 900), (14, 7, 1407)):
            self.assertEqual(number, vgpu.slot_number(gpu_instance, compute_instance))
            self.assertEqual((gpu_instance, compute_instance), vgpu.of_slot(number))

    def test_no_two_have_one(self) -> None:
        every = [(gi, ci) for gi in range(120) for ci in range(120)]
        numbers = [vgpu.slot_number(*each) for each in every]
        known = [each for each in numbers if each is not None]
        self.assertEqual(len(known), len(set(known)))
        self.assertIsNone(vgpu.slot_number(1, 100))
        self.assertIsNone(vgpu.slot_number(10_000, 0))
