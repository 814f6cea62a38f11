# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core.placement import inventory


class InventoryTest(unittest.TestCase):
    def test_whole_cards(self) -> None:
        self.assertEqual(
            {
                "PGPU": {
                    "total": 8,
                    "reserved": 1,
                    "min_unit": 1,
                    "max_unit": 8,
                    "step_size": 1,
                    "allocation_ratio": 1.0,
                }
            },
            inventory.inventory(8, 1),
        )

    def test_room_in_one_guest(self) -> None:
        for most, max_unit in ((3, 3), (9, 8), (0, 1)):
            found = inventory.inventory(8, 0, most=most)["PGPU"]
            self.assertEqual((8, max_unit), (found["total"], found["max_unit"]))

    def test_never_more_reserved_than_there_is(self) -> None:
        self.assertEqual(4, inventory.inventory(4, 5)["PGPU"]["reserved"])
