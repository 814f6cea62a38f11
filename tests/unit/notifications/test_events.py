# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import unittest

from nova_gpu.core.model import PciAddress, Product
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.notifications import Event, EventType, of_devices


class TestPayload(unittest.TestCase):
    def test_plain_values(self) -> None:
        event = Event(EventType.CLAIM, 2, host="gpu1", addresses=("0000:04:00.0", "0000:05:00.0"))
        payload = event.payload
        self.assertEqual(payload, json.loads(json.dumps(payload)))
        self.assertEqual(["0000:04:00.0", "0000:05:00.0"], payload["addresses"])
        self.assertNotIn("type", payload)
        self.assertIsNone(payload["reason"])

    def test_one_of_each_product_and_type(self) -> None:
        one, two = (Product("10de", each, each, "ada", 24576) for each in ("26b9", "26b5"))
        places = ["3b:00.4/nvidia-1155/0", "3b:00.5/nvidia-1155/0", "3b:00.6/nvidia-1156/0"]
        first, second, third = (Slot.parse(f"0000:{each}") for each in places)
        other = Slot.parse("0000:5e:00.4/nvidia-1156/0")
        whole = PciAddress.parse("0000:af:00.0")
        products = {second: one, third: one, whole: one, first: one, other: two}
        found = list(of_devices(EventType.RELEASE, products, "gpu1"))
        self.assertEqual(
            [
                ("nvidia-1155", "10de:26b9", (str(first), str(second)), 2),
                ("nvidia-1156", "10de:26b9", (str(third),), 1),
                (None, "10de:26b9", (str(whole),), 1),
                ("nvidia-1156", "10de:26b5", (str(other),), 1),
            ],
            [(each.vgpu_type, each.product_id, each.addresses, each.count) for each in found],
        )
        self.assertEqual({"gpu1"}, {each.payload["host"] for each in found})

    def test_addresses_are_in_their_order(self) -> None:
        product = Product("10de", "26b9", "26b9", "ada", 24576)
        cards = [PciAddress.parse(f"0000:{number}f:00.0") for number in range(8)]
        slots = [Slot.parse(f"0000:3b:00.{number}/nvidia-1155/0") for number in range(8)]
        products = dict.fromkeys([*reversed(cards), *reversed(slots)], product)
        found = of_devices(EventType.CLAIM, products, "gpu1")
        self.assertEqual(
            [tuple(map(str, cards)), tuple(map(str, slots))], [each.addresses for each in found]
        )

    def test_what_is_wrong_is_an_error(self) -> None:
        errors = {each for each in EventType if each.is_error}
        expected = {"gpu.fault", "gpu.quarantine", "gpu.no_valid_host", "gpu.reached"}
        self.assertEqual(expected, errors)
