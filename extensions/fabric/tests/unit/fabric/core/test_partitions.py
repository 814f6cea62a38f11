# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Collection

from oslotest import base

from nova_gpu.core import card_sets, names
from nova_gpu.core.model import PciAddress
from nova_gpu_fabric.core import partitions
from nova_gpu_fabric.core.partitions import Partition
from nova_gpu_fabric.core.set_traits import PartitionSets
from tests.fixtures.partitions import A100_TWO, H100, MODULES


def chosen(table: tuple[Partition, ...], taken: set[int], count: int) -> set[int]:
    partition = partitions.choose(table, taken, count)
    return set(partition.modules) if partition else set()


class ChoiceTest(base.BaseTestCase):
    def test_what_counts_before_the_rest(self) -> None:
        """Those beside what the guest has: the one with the fewest far modules"""

        def far(modules: Collection[int]) -> tuple[int, ...]:
            return (len({*modules} - {1}),)

        self.assertEqual({5, 7}, chosen(H100, {8}, 2))
        partition = partitions.choose(H100, {8}, 2, far)
        self.assertEqual({1, 3}, set(partition.modules) if partition else None)

    def test_two_boards_that_are_linked(self) -> None:
        self.assertEqual(set(range(1, 17)), chosen(A100_TWO, set(), 16))
        self.assertEqual(set(range(1, 9)), chosen(A100_TWO, set(), 8))
        # Four of each
        self.assertEqual({5, 6, 7, 8, 9, 10, 11, 12}, chosen(A100_TWO, {1, 13}, 8))
        self.assertEqual({5, 6, 7, 8}, chosen(A100_TWO, {1, 9, 13}, 4))
        self.assertEqual({3, 4}, chosen(A100_TWO, {1}, 2))


class JoinedTest(base.BaseTestCase):
    def test_partitions_with_a_card_that_is_not_known_are_left_out(self) -> None:
        modules = {
            PciAddress.parse(address): number for address, number in MODULES.items() if number != 2
        }
        self.assertEqual(
            {2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14}, {*partitions.joined(H100, modules)}
        )


class PublishedTest(base.BaseTestCase):
    def test_there_and_back(self) -> None:
        for table, free in ((H100, {1, 2, 5, 6, 7, 8}), (A100_TWO, {*range(1, 17)}), (H100, set())):
            taken = frozenset().union(*(partition.modules for partition in table)) - free
            traits = PartitionSets(table, taken).traits()
            self.assertTrue(all(map(names.is_own_trait, traits)))
            self.assertTrue(all(len(trait) <= 255 for trait in traits))
            partition_sets = card_sets.of_traits(traits | {"CUSTOM_GPU", "CUSTOM_GPU_ARCH_HOPPER"})
            assert isinstance(partition_sets, PartitionSets)
            self.assertEqual(
                {p.modules for p in table}, {p.modules for p in partition_sets.partitions}
            )
            self.assertEqual(taken, partition_sets.taken)
            self.assertEqual(partitions.room(table, taken), partition_sets.room())
            for count in (1, 2, 4, 8):
                wanted, chosen = (
                    partitions.choose(table, taken, count),
                    partition_sets.choose(count),
                )
                self.assertEqual(wanted and wanted.modules, chosen)

    def test_without_a_board(self) -> None:
        self.assertIsNone(card_sets.of_traits(frozenset({"CUSTOM_GPU", "CUSTOM_GPU_PARTITION_X"})))
