# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
import unittest
from collections.abc import Collection

from nova_gpu.core.flavor.placement_policy import Arrangement, Near, Topology, TopologyPolicy
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.topology import choose, topology
from nova_gpu.core.topology.nearness import Neighbour
from tests.fixtures import brute_force, cards
from tests.fixtures.bases import fuzz


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
    ("the whole socket, not the broken one", FOUR_AND_FOUR, [1, 2, 3, 4, 5, 6, 7], 4, [4, 5, 6, 7]),
    ("the broken socket before the whole one", FOUR_AND_FOUR, [1, 2, 3, 4, 5, 6, 7], 2, [1, 2]),
    ("tightest fit on the second socket", FOUR_AND_FOUR, [0, 1, 2, 3, 6, 7], 2, [6, 7]),
    ("both sockets where one is too small", FOUR_AND_FOUR, range(8), 5, [0, 1, 2, 3, 4]),
    ("a pair, not two halves", PAIRS, [0, 2, 4, 5], 2, [4, 5]),
    ("a half, not a pair", PAIRS, [0, 1, 3, 4, 5], 1, [3]),
    ("a pair and a half", PAIRS, [0, 1, 3, 4, 5], 3, [0, 1, 3]),
    ("behind a switch: the tighter socket", SWITCHED, [0, 1, 2, 4, 5], 2, [4, 5]),
    ("unlinked ones are no pair", ONE_ODD, [2, 3, 4, 5], 2, [2, 3]),
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


class BesideTest(unittest.TestCase):
    def test_nothing_to_be_beside(self) -> None:
        disk = Neighbour(0x010802, 0)
        for near, found in ((Near.ANY, [disk]), (Near.NIC, [disk]), (Near.NVME, [])):
            self.assertIsNone(choose.beside(Arrangement(near=near), FOUR_AND_FOUR, found))

    def test_before_what_fits_tightest(self) -> None:
        places = topology.places(FOUR_AND_FOUR)
        beside = choose.beside(Arrangement(near=Near.NIC), FOUR_AND_FOUR, [Neighbour(0x020000, 1)])
        for count, expected in ((1, [4]), (4, [4, 5, 6, 7]), (5, [0, 4, 5, 6, 7])):
            chosen = choose.choose(places.keys(), count, places, beside)
            self.assertEqual([bus(number) for number in expected], [str(c) for c in chosen])


class BruteForceTest(unittest.TestCase):
    """Against every subset of what is free, on random hosts of each layout that there is."""

    def test_beside(self) -> None:
        """What an instance has beside them comes first, but for the level that it insists on."""
        draw = random.Random(20261124)
        for number in range(fuzz.examples(40, 150)):
            gpus = _random_host(draw, draw.choice(list(_LAYOUTS)))
            like = draw.sample(gpus, draw.randint(1, 3))
            neighbours = [
                Neighbour(0x020000, each.numa_node, each.pci_root, each.pcie_switch)
                for each in like
            ]
            stated = draw.choice(list(Topology))
            arrangement = Arrangement(stated, draw.choice(list(TopologyPolicy)), near=Near.NIC)
            free = _some(draw, gpus)
            places = topology.places(free)
            beside = choose.beside(arrangement, free, neighbours)
            assert beside is not None
            insists = arrangement.policy is TopologyPolicy.REQUIRED
            self.assertEqual(insists and stated is not Topology.ANY, beside.within is not None)
            for count in range(len(free) + 1):
                best = brute_force.nearest(count, places, beside)
                with self.subTest(host=number, places=places, count=count):
                    self.assertEqual(best, choose.choose(places.keys(), count, places, beside))

    def test_circles_that_cross_numa_nodes(self) -> None:
        """No order of the levels nests there; the circles come first all the same."""
        draw = random.Random(20261122)
        for _ in range(fuzz.examples(20, 60)):
            gpus = host(*(draw.randrange(2) for _ in range(8)), pairs=True)
            free = _some(draw, gpus)
            places = topology.places(free)
            for count in range(len(free) + 1):
                chosen = choose.choose(places.keys(), count, places)
                self.assertEqual(count, len(set(chosen)))
                fewest = brute_force.best(count, places)[0][0]
                self.assertEqual(fewest, brute_force.cost(chosen, places)[0])


def _some(draw: random.Random, gpus: list[GPU]) -> list[GPU]:
    return draw.sample(gpus, draw.randint(1, len(gpus)))


# How many cards in a row direct links join, and where: on one NUMA node, or wherever they are.
_LAYOUTS = {"no links": 1, "pairs": 2, "fours": 4, "all": 8}


def _random_host(draw: random.Random, layout: str) -> list[GPU]:
    joined = _LAYOUTS[layout]
    per_node = draw.choice([each for each in (2, 4, 8) if each >= joined or joined == 8])
    per_root = draw.choice([each for each in (1, 2, 4) if each <= per_node])
    per_switch = draw.choice([0, *(each for each in (2, 4) if each <= per_root)])
    known = draw.random() < 0.8
    gpus = []
    for number in range(8):
        first = number - number % joined
        peers = [bus(peer) for peer in range(first, first + joined) if peer != number]
        port = PciAddress(1, number // per_switch, 0, 0) if per_switch else None
        gpus.append(
            cards.placed(
                bus(number),
                number // per_node if known else None,
                peers,
                pci_root=f"pci0000:{number // per_root:02x}",
                pcie_switch=port,
            )
        )
    return gpus
