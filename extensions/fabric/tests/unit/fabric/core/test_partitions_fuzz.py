# SPDX-License-Identifier: Apache-2.0
"""Claims and releases of partitions in any order, on any board, against brute force."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from nova_gpu_fabric.core import partitions
from nova_gpu_fabric.core.partitions import Partition
from tests.fixtures.bases import fuzz as base
from tests.fixtures.partitions import A100, H100

_Board = tuple[Partition, ...]


@st.composite
def _any_board(draw: st.DrawFn) -> _Board:
    """Up to ten sets of up to six cards, which may overlap as they like"""
    modules = st.frozensets(st.integers(1, 6), min_size=1)
    sets = draw(st.lists(modules, max_size=10, unique=True))
    return tuple(Partition(number, modules) for number, modules in enumerate(sets))


BOARDS = st.sampled_from([H100, A100]) | _any_board()
# Of a claim the number of cards; of a release, below 0, which of those that are out goes
STEPS = st.lists(st.sampled_from([1, 1, 2, 2, 4, 8, 3]) | st.integers(-8, -1), max_size=24)


def legal(board: _Board, taken: set[int], count: int) -> list[frozenset[int]]:
    """Each set of *count* cards that is a partition and of which none is taken"""
    cards = sorted(set().union(*(partition.modules for partition in board)) - taken)
    sets = {partition.modules for partition in board}
    return [frozenset(s) for s in itertools.combinations(cards, count) if frozenset(s) in sets]


def sizes(board: _Board, taken: set[int]) -> list[int]:
    """The sizes of the free partitions, the largest first"""
    every = range(len(set().union(*(partition.modules for partition in board))), 0, -1)
    return [count for count in every for _ in legal(board, taken, count)]


def packed(sets: list[frozenset[int]]) -> int:
    """How many of *sets* can be had at once, by trying all"""
    return max(
        count
        for count in range(len(sets) + 1)
        for some in itertools.combinations(sets, count)
        if sum(map(len, some)) == len(frozenset[int]().union(*some))
    )


class PartitionsTest(base.FuzzTestCase):
    @base.fuzzed(board=BOARDS, steps=STEPS)
    def test_claims_and_releases(self, board: _Board, steps: list[int]) -> None:
        out: list[Partition] = []
        for step in steps:
            taken = set().union(*(partition.modules for partition in out))
            if step < 0:
                if out:
                    out.pop(step % len(out))
                continue
            possible = legal(board, taken, step)
            partition = partitions.choose(board, taken, step)
            if partition is None:
                self.assertEqual([], possible)
                continue
            self.assertIn(partition.modules, possible)
            best = max(sizes(board, taken | modules) for modules in possible)
            self.assertEqual(best, sizes(board, taken | partition.modules))
            out.append(partition)

    @base.fuzzed(board=BOARDS, taken=st.frozensets(st.integers(1, 8)))
    def test_room(self, board: _Board, taken: frozenset[int]) -> None:
        room = partitions.room(board, taken)
        for count in range(1, 9):
            self.assertEqual(packed(legal(board, set(taken), count)), room.get(count, 0))
