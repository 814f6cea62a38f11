# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import unittest
from typing import Any

from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.stock.core.holding import Alias
from nova_gpu.stock.virt import aliases

A2, L4 = Product("10de", "25b6", "A2"), Product("10de", "27b8", "L4")
ONE, TWO = PciAddress(0, 1, 0, 0), PciAddress(0, 2, 0, 0)
GPUS = (GPU(TWO, L4, 0x030200), GPU(ONE, A2, 0x030200))
OF_A2 = {"vendor_id": "10DE", "product_id": "25B6"}
OF_L4 = {"vendor_id": "10de", "product_id": "27b8"}


class AliasesTest(unittest.TestCase):
    def read(self, *own: dict[str, Any] | str) -> list[Alias]:
        texts = [text if isinstance(text, str) else json.dumps(text) for text in own]
        return aliases.read(texts, GPUS)

    def test_one_product(self) -> None:
        words = {"gpus": "= 1", "gpu:model": "s== A2"}
        self.assertEqual([Alias("a2", (ONE,), words)], self.read({**OF_A2, "name": "a2"}))

    def test_several_products(self) -> None:
        """Nova joins what has one name."""
        found = self.read({**OF_A2, "name": "any"}, {**OF_L4, "name": "any"})
        self.assertEqual([Alias("any", (ONE, TWO), {})], found)

    def test_no_gpu(self) -> None:
        nic = {"vendor_id": "8086", "product_id": "1533", "name": "nic"}
        self.assertEqual([], self.read(nic))
        self.assertEqual([], self.read({"resource_class": "CUSTOM_FPGA", "name": "fpga"}))
        self.assertEqual([], self.read())

    def test_one_that_nova_does_not_read(self) -> None:
        unnamed = '{"vendor_id": "10de", "product_id": "25b6"}'
        for text in ("no json", "[]", "3", unnamed, {**OF_A2, "name": 1}):
            with self.subTest(text):
                self.assertEqual(1, len(self.read(text, {**OF_A2, "name": "a2"})))

    def test_a_name_between_spaces(self) -> None:
        """Nova takes them away."""
        (alias,) = self.read({**OF_A2, "name": " a2 "})
        self.assertEqual("a2", alias.name)

    def test_virtual_functions(self) -> None:
        self.assertEqual([], self.read({**OF_A2, "name": "vf", "device_type": "type-VF"}))
        (alias,) = self.read({**OF_A2, "name": "pf", "device_type": "type-PF"})
        self.assertEqual("pf", alias.name)
