# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
import unittest

from nova_gpu.core.flavor.placement_policy import Arrangement, Near, Topology, TopologyPolicy
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.topology import choose, nearness, topology
from nova_gpu.core.topology.affinity import Affinity, Policy
from nova_gpu.core.topology.nearness import Neighbour
from tests.fixtures import brute_force, cards
from tests.fixtures.bases import fuzz

A, B, C, D = (f"0000:{bus:02x}:00.0" for bus in (0x04, 0x05, 0x88, 0x89))


class PlacesTest(unittest.TestCase):
    def together(self, level: int, *gpus: GPU) -> list[list[str]]:
        """Which of *gpus* are in one place at *level*"""
        places = topology.places(gpus)
        groups: dict[object, list[str]] = {}
        for gpu in gpus:
            number = places[gpu.address][level]
            island = gpu.address if number == topology.ALONE else number
            groups.setdefault(island, []).append(str(gpu.address))
        return list(groups.values())

    def test_numa_nodes(self) -> None:
        gpus = [cards.placed(A, 0), cards.placed(B, 0), cards.placed(C, 1), cards.placed(D, None)]
        self.assertEqual([[A, B], [C], [D]], self.together(topology.NUMA_NODE, *gpus))
        self.assertEqual([[A], [B], [C], [D]], self.together(topology.CIRCLE, *gpus))
        unknown = [cards.placed(A, None), cards.placed(B, None)]
        self.assertEqual([[A], [B]], self.together(topology.NUMA_NODE, *unknown))

    def test_circles(self) -> None:
        for peers, expected in (
            ({}, [[A], [B], [C], [D]]),
            ({A: [B], B: [A], C: [D], D: [C]}, [[A, B], [C, D]]),
            ({A: [B], B: [A, C], C: [B]}, [[A, B, C], [D]]),
            # A peer that is not there joins nothing.
            ({A: ["0000:ff:00.0"], B: ["0000:ff:00.0"]}, [[A], [B], [C], [D]]),
        ):
            gpus = [cards.placed(address, 0, peers.get(address, [])) for address in (A, B, C, D)]
            with self.subTest(peers=peers):
                self.assertEqual(expected, self.together(topology.CIRCLE, *gpus))

    def test_roots_and_switches(self) -> None:
        (port,) = cards.addresses("0000:02:00.0")
        gpus = [
            cards.placed(A, 0, pci_root="pci0000:00", pcie_switch=port),
            cards.placed(B, 0, pci_root="pci0000:00", pcie_switch=port),
            cards.placed(C, 0, pci_root="pci0000:00"),
            cards.placed(D, 0),
        ]
        self.assertEqual([[A, B, C], [D]], self.together(topology.PCI_ROOT, *gpus))
        self.assertEqual([[A, B], [C], [D]], self.together(topology.PCIE_SWITCH, *gpus))


class CellsTest(unittest.TestCase):
    def test_hosts_that_lie_alike_say_the_same(self) -> None:
        one = [cards.placed(A, 0), cards.placed(B, 0), cards.placed(C, 1)]
        other = [cards.placed(B, 1), cards.placed(C, 4), cards.placed(D, 4)]
        self.assertEqual(((-1, -1, -1, -1, 1), (-1, 0, -1, -1, 2)), topology.cells(one))
        self.assertEqual(topology.cells(one), topology.cells(other))


class IslandsTest(unittest.TestCase):
    def test_the_largest_that_there_are(self) -> None:
        for gpus, numa, nvlink in (
            ([], 1, 1),
            ([cards.placed(A, None), cards.placed(B, None)], 1, 1),
            ([cards.placed(A, 0), cards.placed(B, 0), cards.placed(C, 1)], 2, 1),
            ([cards.placed(A, 0, [C]), cards.placed(B, 0), cards.placed(C, 1, [A])], 2, 2),
        ):
            with self.subTest(gpus=gpus):
                self.assertEqual(topology.Islands(numa, nvlink), topology.islands(gpus))


NIC, NVME = 0x020000, 0x010802
SWITCH, OTHER = PciAddress(0, 1, 0, 0), PciAddress(0, 2, 0, 0)
CARD = cards.placed("0000:04:00.0", 0, pci_root="pci0000:00", pcie_switch=SWITCH)


class KindTest(unittest.TestCase):
    def test_classes(self) -> None:
        """As in the kernel's include/linux/pci_ids.h"""
        for class_code, expected in (
            (NIC, Near.NIC),
            (0x020700, Near.NIC),  # InfiniBand
            (NVME, Near.NVME),
            (0x010601, Near.ANY),  # SATA
            (0x030200, Near.ANY),
        ):
            self.assertIs(expected, Neighbour(class_code).kind)


class DistanceTest(unittest.TestCase):
    def test_to_one(self) -> None:
        for expected, neighbour in enumerate(
            (
                Neighbour(NIC, 1, "pci0000:80", SWITCH),
                Neighbour(NIC, 1, "pci0000:00", OTHER),
                Neighbour(NIC, 0, "pci0000:80", OTHER),
                Neighbour(NIC, 1, "pci0000:80", OTHER),
            )
        ):
            self.assertEqual(expected, nearness.distance(CARD, [neighbour]))

    def test_what_is_not_known_is_far(self) -> None:
        nowhere = cards.placed("0000:04:00.0", None)
        for gpu, neighbours in ((CARD, [Neighbour(NIC)]), (nowhere, [Neighbour(NIC)]), (CARD, [])):
            self.assertEqual(nearness.FAR, nearness.distance(gpu, neighbours))


def bus(number: int) -> str:
    return f"0000:{number:02x}:00.0"


def host(*numa_nodes: int, pairs: bool = False) -> list[GPU]:
    """Cards on the buses 0, 1, ... of these NUMA nodes; *pairs*: each even one with the next"""
    return [
        cards.placed(bus(number), node, [bus(number ^ 1)] if pairs else [])
        for number, node in enumerate(numa_nodes)
    ]


FOUR_AND_FOUR = host(*[0] * 4, *[1] * 4)


class MoreThanThereIsTest(unittest.TestCase):
    def test_more_than_there_is(self) -> None:
        places = topology.places(FOUR_AND_FOUR)
        for count in (9, -1):
            with self.subTest(count=count), self.assertRaises(ValueError):
                choose.choose(places.keys(), count, places)


class BesideTest(unittest.TestCase):
    def test_nothing_to_be_beside(self) -> None:
        disk = Neighbour(0x010802, 0)
        for near, neighbours in ((Near.ANY, [disk]), (Near.NIC, [disk]), (Near.NVME, [])):
            self.assertIsNone(choose.beside(Arrangement(near=near), FOUR_AND_FOUR, neighbours))


class BruteForceTest(unittest.TestCase):
    """Against every subset of what is free, on random hosts of each layout that there is."""

    def test_beside(self) -> None:
        """What an instance has beside them comes first, but for the level that it insists on."""
        draw = random.Random(20261124)
        for number in range(fuzz.examples(40, 150)):
            gpus = _random_host(draw, draw.choice(list(_LAYOUTS)))
            like = draw.sample(gpus, draw.randint(1, 3))
            neighbours = [
                Neighbour(0x020000, card.numa_node, card.pci_root, card.pcie_switch)
                for card in like
            ]
            stated = draw.choice(list(Topology))
            arrangement = Arrangement(stated, draw.choice(list(TopologyPolicy)), near=Near.NIC)
            free = _some(draw, gpus)
            places = topology.places(free)
            cells = Affinity(draw.choice(list(Policy)), frozenset({draw.randrange(2)}))
            beside = choose.beside(arrangement, free, neighbours, draw.choice([cells, None]))
            assert beside is not None
            insists = arrangement.policy is TopologyPolicy.REQUIRED
            self.assertEqual(insists and stated is not Topology.ANY, beside.within is not None)
            for count in range(len(free) + 1):
                best = brute_force.nearest(count, places, beside)
                with self.subTest(host=number, places=places, count=count):
                    self.assertEqual(best, choose.choose(places.keys(), count, places, beside))
                    _, best = brute_force.best(count, places)
                    self.assertEqual(best, choose.choose(places.keys(), count, places))

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
    per_node = draw.choice([count for count in (2, 4, 8) if count >= joined or joined == 8])
    per_root = draw.choice([count for count in (1, 2, 4) if count <= per_node])
    per_switch = draw.choice([0, *(count for count in (2, 4) if count <= per_root)])
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
