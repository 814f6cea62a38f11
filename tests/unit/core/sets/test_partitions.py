# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Collection

from oslotest import base

from nova_gpu.core.model import PciAddress
from nova_gpu.core.sets import partitions
from nova_gpu.core.sets.partitions import Partition
from tests.fixtures.partitions import A100_TWO, H100, MODULES


def chosen(offered: tuple[Partition, ...], taken: set[int], count: int) -> set[int]:
    found = partitions.choose(offered, taken, count)
    return set(found.modules) if found else set()


class ChoiceTest(base.BaseTestCase):
    def test_of_an_empty_board(self) -> None:
        for count, first in ((8, range(1, 9)), (4, range(1, 5)), (2, (1, 3)), (1, (1,))):
            self.assertEqual(set(first), chosen(H100, set(), count))

    def test_what_counts_before_the_rest(self) -> None:
        """Those beside what the guest has: the one with the fewest far modules"""

        def far(modules: Collection[int]) -> tuple[int, ...]:
            return (len({*modules} - {1}),)

        self.assertEqual({5, 7}, chosen(H100, {8}, 2))
        found = partitions.choose(H100, {8}, 2, far)
        self.assertEqual({1, 3}, set(found.modules) if found else None)

    def test_exactly(self) -> None:
        found = partitions.exactly(H100, [7, 5])
        self.assertEqual(5, found and found.id)
        self.assertIsNone(partitions.exactly(H100, [1, 2]))
        self.assertIsNone(partitions.exactly(H100, []))

    def test_two_boards_that_are_linked(self) -> None:
        self.assertEqual(set(range(1, 17)), chosen(A100_TWO, set(), 16))
        self.assertEqual(set(range(1, 9)), chosen(A100_TWO, set(), 8))
        # Four of each
        self.assertEqual({5, 6, 7, 8, 9, 10, 11, 12}, chosen(A100_TWO, {1, 13}, 8))
        self.assertEqual({5, 6, 7, 8}, chosen(A100_TWO, {1, 9, 13}, 4))
        self.assertEqual({3, 4}, chosen(A100_TWO, {1}, 2))


class WordsTest(base.BaseTestCase):
    def test_no_free_partition(self) -> None:
        self.assertEqual("6 of 8 free, no free partition of 4", partitions.refusal(H100, [1, 8], 4))

    def test_a_size_that_the_board_does_not_have(self) -> None:
        self.assertEqual(
            "8 of 8 free, and the board has no partition of 3 (sizes: 1, 2, 4, 8)",
            partitions.refusal(H100, (), 3),
        )
        self.assertEqual(
            "0 of 0 free, and the board has no partition of 1 (sizes: none)",
            partitions.refusal((), (), 1),
        )


class JoinedTest(base.BaseTestCase):
    def test_partitions_with_a_card_that_is_not_known_are_left_out(self) -> None:
        modules = {
            PciAddress.parse(address): number for address, number in MODULES.items() if number != 2
        }
        self.assertEqual(
            {2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14}, {*partitions.joined(H100, modules)}
        )
