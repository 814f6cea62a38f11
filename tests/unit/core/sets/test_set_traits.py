# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from oslotest import base

from nova_gpu.core import names
from nova_gpu.core.sets import partitions, set_traits
from tests.fixtures.partitions import A100_TWO, H100


class PublishedTest(base.BaseTestCase):
    def test_there_and_back(self) -> None:
        for table, free in ((H100, {1, 2, 5, 6, 7, 8}), (A100_TWO, {*range(1, 17)}), (H100, set())):
            told = set_traits.traits(table, free)
            self.assertTrue(all(map(names.is_own_trait, told)))
            self.assertTrue(all(len(each) <= 255 for each in told))
            found = set_traits.board(told | {"CUSTOM_GPU", "CUSTOM_GPU_ARCH_HOPPER"})
            assert found
            self.assertEqual({p.modules for p in table}, {p.modules for p in found.partitions})
            taken = frozenset().union(*(each.modules for each in table)) - free
            self.assertEqual(taken, found.taken)
            self.assertEqual(partitions.room(table, taken), found.room())
            for count in (1, 2, 4, 8):
                wanted, chosen = partitions.choose(table, taken, count), found.choose(count)
                self.assertEqual(wanted and wanted.modules, chosen and chosen.modules)

    def test_without_a_board(self) -> None:
        self.assertIsNone(set_traits.board(frozenset({"CUSTOM_GPU", "CUSTOM_GPU_PARTITION_X"})))
