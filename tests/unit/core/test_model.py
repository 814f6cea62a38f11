# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress, Product


class PciAddressTest(unittest.TestCase):
    def test_parse_and_print(self) -> None:
        for text, parts in (
            ("0000:88:00.0", (0, 0x88, 0, 0)),
            ("10000:01:1f.7", (0x10000, 1, 0x1F, 7)),
            ("0001:c1:00.1", (1, 0xC1, 0, 1)),
        ):
            with self.subTest(text=text):
                address = PciAddress.parse(text)
                self.assertEqual(PciAddress(*parts), address)
                self.assertEqual(text, str(address))

    def test_upper_case_is_the_same_address(self) -> None:
        self.assertEqual("0000:c1:00.0", str(PciAddress.parse("0000:C1:00.0")))

    def test_what_is_no_address(self) -> None:
        for text in ("", "88:00.0", "0000:88:00", "0000:88:20.0", "0000:88:00.8", "0000:88:00.0 "):
            with (
                self.subTest(text=text),
                self.assertRaisesRegex(exception.InvalidPciAddress, "0000:88:00.0"),
            ):
                PciAddress.parse(text)

    def test_order_is_the_buses(self) -> None:
        texts = ["0000:09:00.0", "0000:10:00.0", "0000:88:00.0", "0001:04:00.0", "10000:01:00.0"]
        addresses = [PciAddress.parse(text) for text in reversed(texts)]
        self.assertEqual(texts, [str(address) for address in sorted(addresses)])


class ProductTest(unittest.TestCase):
    def test_key_is_as_lspci_writes_it(self) -> None:
        self.assertEqual("10de:2335", Product("10de", "2335").key)
