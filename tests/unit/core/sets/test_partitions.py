# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Collection

from oslotest import base

from nova_gpu.core.model import PciAddress
from nova_gpu.core.sets import partitions
from nova_gpu.core.sets.partitions import Partition
from tests.fixtures.partitions import A100, A100_TWO, H100, MODULES


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

    def test_sizes_that_no_board_has(self) -> None:
        for count in (0, 3, 5, 6, 7, 9):
            self.assertIsNone(partitions.choose(H100, set(), count))

    def test_the_half_that_is_broken_already(self) -> None:
        self.assertEqual({2, 4}, chosen(H100, {1}, 2))
        self.assertEqual({3}, chosen(H100, {1}, 1))
        self.assertEqual({8}, chosen(H100, {6}, 1))
        self.assertEqual({2}, chosen(A100, {1}, 1))

    def test_a_pair_is_kept_where_a_broken_one_has_room(self) -> None:
        self.assertEqual({7}, chosen(H100, {1, 2, 3, 4, 5}, 1))

    def test_none_is_split(self) -> None:
        self.assertEqual(set(), chosen(H100, {1, 5}, 4))
        self.assertEqual(set(), chosen(H100, {1, 2, 5, 6}, 2))

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


class RoomTest(base.BaseTestCase):
    def test_of_two_boards(self) -> None:
        self.assertEqual({1: 16, 2: 8, 4: 4, 8: 2, 16: 1}, partitions.room(A100_TWO, ()))
        self.assertEqual({1: 14, 2: 6, 4: 2, 8: 1}, partitions.room(A100_TWO, {1, 13}))
        self.assertEqual({1: 8, 2: 4, 4: 2, 8: 1}, partitions.room(A100, ()))

    def test_of_a_board(self) -> None:
        self.assertEqual({1: 8, 2: 4, 4: 2, 8: 1}, partitions.room(H100, ()))
        self.assertEqual({1: 7, 2: 3, 4: 1}, partitions.room(H100, [3]))
        self.assertEqual({1: 6, 2: 2}, partitions.room(H100, [1, 8]))
        self.assertEqual({}, partitions.room(H100, range(1, 9)))

    def test_where_those_of_one_size_overlap(self) -> None:
        sets = ({2, 3}, {1, 2}, {3, 4}, {4, 5})
        table = [Partition(number, frozenset(each)) for number, each in enumerate(sets)]
        self.assertEqual({2: 2}, partitions.room(table, ()))

    def test_most_that_could_be_is_found(self) -> None:
        """The first is in the way of two others"""
        table = [Partition(n, frozenset(s)) for n, s in enumerate(({2, 3}, {1, 2}, {3, 4}))]
        self.assertEqual({2: 2}, partitions.room(table, ()))


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
    def test_modules_are_not_in_the_order_of_pci(self) -> None:
        modules = {PciAddress.parse(address): number for address, number in MODULES.items()}
        found = partitions.joined(H100, modules)
        self.assertEqual(
            ["0000:86:00.0", "0000:87:00.0", "0000:b8:00.0", "0000:bb:00.0"],
            sorted(map(str, found[1])),
        )
        self.assertEqual(["0000:0f:00.0", "0000:10:00.0"], sorted(map(str, found[5])))

    def test_partitions_with_a_card_that_is_not_known_are_left_out(self) -> None:
        modules = {
            PciAddress.parse(address): number for address, number in MODULES.items() if number != 2
        }
        self.assertEqual(
            {2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14}, {*partitions.joined(H100, modules)}
        )
