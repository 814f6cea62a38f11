# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from nova import objects, test

from nova_gpu.core import device
from nova_gpu.virt.usage import stock_records


class StockRecordsTest(test.NoDBTestCase):
    def test_whose_function_it_is(self) -> None:
        own = [device.parse(text) for text in ("0000:3b:00.0", "0000:af:00.4/nvidia-35/0")]
        for address, expected in (
            ("0000:3b:00.0", True),
            ("0000:3b:00.1", True),  # its audio
            ("0000:3b:01.0", False),
            ("0000:af:00.4", True),
            ("0000:af:00.5", False),
            ("nonsense", False),
        ):
            row = objects.PciDevice(address=address)
            self.assertEqual(expected, stock_records.is_of(row, own), address)

    def test_a_database_that_does_not_answer(self) -> None:
        """Nova's own check forbids the database here."""
        stock_records.end("host1", "node1")
        self.assertFalse(stock_records.was_ours("host1", "node1"))
