# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core.guest import cells
from nova_gpu.core.guest.cells import Cell


class CellsTest(unittest.TestCase):
    def test_equal_parts(self) -> None:
        self.assertEqual(
            (Cell(0, range(4), 1024), Cell(3, range(4, 8), 1024)), cells.of((0, 3), 8, 2048)
        )

    def test_what_is_left_over(self) -> None:
        found = cells.of((0, 1, 2), 4, 1025)
        self.assertEqual([range(2), range(2, 3), range(3, 4)], [each.cpus for each in found])
        self.assertEqual([342, 342, 341], [each.memory_mib for each in found])

    def test_fewer_processors_than_nodes(self) -> None:
        """The first one has it: no guest boots from a node without."""
        self.assertEqual([1, 0], [len(each.cpus) for each in cells.of((0, 1), 1, 512)])

    def test_no_nodes(self) -> None:
        self.assertEqual((), cells.of((), 4, 1024))
