# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress


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

    def test_what_is_no_address(self) -> None:
        for text in ("", "88:00.0", "0000:88:00", "0000:88:20.0", "0000:88:00.8", "0000:88:00.0 "):
            with (
                self.subTest(text=text),
                self.assertRaisesRegex(exception.InvalidPciAddress, "0000:88:00.0"),
            ):
                PciAddress.parse(text)
