# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import random
import unittest
from collections.abc import Collection, Mapping

from nova_gpu.core import choose, topology
from nova_gpu.core.model import GPU, PciAddress
from tests.fixtures import cards


def bus(number: int) -> str:
    return f"0000:{number:02x}:00.0"


def host(*numa_nodes: int, pairs: bool = False) -> list[GPU]:
    """Cards on the buses 0, 1, ... of these NUMA nodes; *pairs*: each even one with the next"""
    return [
        cards.placed(bus(number), node, [bus(number ^ 1)] if pairs else [])
        for number, node in enumerate(numa_nodes)
    ]


FOUR_AND_FOUR = host(*[0] * 4, *[1] * 4)
PAIRS = host(*[0] * 4, *[1] * 4, pairs=True)
SWITCHED = [
    cards.placed(bus(n), n // 4, [bus(peer) for peer in range(8) if peer != n]) for n in range(8)
]
ONE_ODD = [*host(0, 0, 0, 0, pairs=True), cards.placed(bus(4), 0), cards.placed(bus(5), 0)]

# name, host, buses that are free, how many, the buses chosen
CASES: tuple[tuple[str, list[GPU], Collection[int], int, Collection[int]], ...] = (
    ("nothing", FOUR_AND_FOUR, range(8), 0, []),
    ("one of all", FOUR_AND_FOUR, range(8), 1, [0]),
    ("one socket exactly", FOUR_AND_FOUR, range(8), 4, [0, 1, 2, 3]),
    ("the whole socket, not the broken one", FOUR_AND_FOUR, [1, 2, 3, 4, 5, 6, 7], 4, [4, 5, 6, 7]),
    ("the broken socket before the whole one", FOUR_AND_FOUR, [1, 2, 3, 4, 5, 6, 7], 2, [1, 2]),
    ("one of the smaller rest", FOUR_AND_FOUR, [0, 1, 2, 7], 1, [7]),
    ("tightest fit on the second socket", FOUR_AND_FOUR, [0, 1, 2, 3, 6, 7], 2, [6, 7]),
    ("both sockets where one is too small", FOUR_AND_FOUR, range(8), 5, [0, 1, 2, 3, 4]),
    ("the larger one whole, the rest tight", FOUR_AND_FOUR, [2, 3, 4, 5, 6], 4, [2, 4, 5, 6]),
    ("everything", FOUR_AND_FOUR, range(8), 8, range(8)),
    ("a pair", PAIRS, range(8), 2, [0, 1]),
    ("a pair, not two halves", PAIRS, [0, 2, 4, 5], 2, [4, 5]),
    ("a half, not a pair", PAIRS, [0, 1, 3, 4, 5], 1, [3]),
    ("two pairs", PAIRS, range(8), 4, [0, 1, 2, 3]),
    ("a pair and a half", PAIRS, [0, 1, 3, 4, 5], 3, [0, 1, 3]),
    ("no pair is left: one socket", PAIRS, [0, 4, 6], 2, [4, 6]),
    ("behind a switch: one socket", SWITCHED, range(8), 4, [0, 1, 2, 3]),
    ("behind a switch: the tighter socket", SWITCHED, [0, 1, 2, 4, 5], 2, [4, 5]),
    ("unlinked ones are no pair", ONE_ODD, [2, 3, 4, 5], 2, [2, 3]),
    ("unlinked ones go first", ONE_ODD, range(6), 1, [4]),
    ("unknown NUMA nodes", [cards.placed(bus(n), None) for n in range(4)], range(4), 2, [0, 1]),
)


class CasesTest(unittest.TestCase):
    def test_table(self) -> None:
        for name, gpus, free, count, expected in CASES:
            with self.subTest(name):
                places = topology.places(gpus[number] for number in free)
                chosen = choose.choose(places.keys(), count, places)
                self.assertEqual([bus(number) for number in expected], [str(c) for c in chosen])

    def test_more_than_there_is(self) -> None:
        places = topology.places(FOUR_AND_FOUR)
        for count in (9, -1):
            with self.subTest(count=count), self.assertRaises(ValueError):
                choose.choose(places.keys(), count, places)

    def test_order_of_what_is_free_does_not_matter(self) -> None:
        places = topology.places(PAIRS)
        for free in itertools.permutations(list(places)[:5]):
            self.assertEqual(choose.choose(sorted(free), 3, places), choose.choose(free, 3, places))


class BruteForceTest(unittest.TestCase):
    """Against every subset of small hosts: the fewest islands, then the tightest fit."""

    def test_sockets(self) -> None:
        for places in self._hosts(circles=1, nodes=4):
            for count in range(1, len(places) + 1):
                self.assertBest(places, count, level=1)

    def test_circles(self) -> None:
        for places in self._hosts(circles=4, nodes=2):
            for count in range(1, len(places) + 1):
                self.assertBest(places, count, level=0)

    def test_sockets_inside_the_one_circle_chosen(self) -> None:
        for places in self._hosts(circles=2, nodes=3):
            for count in range(1, len(places) + 1):
                chosen = choose.choose(places.keys(), count, places)
                circles = {places[address][0] for address in chosen}
                if len(circles) == 1:
                    inside = {a: place for a, place in places.items() if place[0] in circles}
                    self.assertBest(inside, count, level=1)

    def _hosts(self, circles: int, nodes: int) -> list[Mapping[PciAddress, topology.Place]]:
        draw = random.Random(20261120)
        return [
            {
                address: (draw.randrange(circles), draw.randrange(nodes))
                for address in cards.addresses(*(bus(n) for n in range(draw.randint(1, 8))))
            }
            for _ in range(60)
        ]

    def assertBest(
        self, places: Mapping[PciAddress, topology.Place], count: int, level: int
    ) -> None:
        def size(island: int) -> int:
            return sum(place[level] == island for place in places.values())

        def cost(addresses: Collection[PciAddress]) -> tuple[int, int]:
            """Islands touched, and how large the island is that is only partly taken"""
            islands = {places[address][level] for address in addresses}
            taken = {i: sum(places[a][level] == i for a in addresses) for i in islands}
            return len(islands), sum(size(i) for i in islands if taken[i] < size(i))

        chosen = choose.choose(places.keys(), count, places)
        self.assertEqual(count, len(set(chosen)))
        subsets = itertools.combinations(places, count)
        fewest, _ = min(cost(subset) for subset in subsets)
        self.assertEqual(fewest, cost(chosen)[0], (dict(places), count, chosen))
        if fewest == 1:
            subsets = itertools.combinations(places, count)
            tightest = min(
                size(places[subset[0]][level]) for subset in subsets if cost(subset)[0] == 1
            )
            self.assertEqual(tightest, size(places[chosen[0]][level]))
