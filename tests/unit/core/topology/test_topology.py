# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core.model import GPU
from nova_gpu.core.topology import topology
from tests.fixtures import cards

A, B, C, D = (f"0000:{bus:02x}:00.0" for bus in (0x04, 0x05, 0x88, 0x89))


class PlacesTest(unittest.TestCase):
    def together(self, level: int, *gpus: GPU) -> list[list[str]]:
        """Which of *gpus* are in one place at *level*"""
        places = topology.places(gpus)
        found: dict[object, list[str]] = {}
        for gpu in gpus:
            number = places[gpu.address][level]
            island = gpu.address if number == topology.ALONE else number
            found.setdefault(island, []).append(str(gpu.address))
        return list(found.values())

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
            gpus = [cards.placed(each, 0, peers.get(each, [])) for each in (A, B, C, D)]
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


class NestingTest(unittest.TestCase):
    def test_where_the_circles_are(self) -> None:
        circle, numa, root, switch = topology.LEVELS
        for name, places, expected in (
            ("none", [(0, 0, 0, 0), (1, 0, 0, 0)], (numa, root, switch, circle)),
            ("one over all", [(0, 0, 0, 0), (0, 1, 1, 1)], (circle, numa, root, switch)),
            (
                "pairs on a NUMA node, each card with a root of its own",
                [(0, 0, -1, -1), (0, 0, -1, -1), (1, 0, -1, -1), (1, 0, -1, -1)],
                (numa, circle, root, switch),
            ),
            (
                "pairs behind a switch",
                [(0, 0, 0, 0), (0, 0, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0)],
                (numa, root, switch, circle),
            ),
            (
                "pairs over two switches of a root",
                [(0, 0, 0, 0), (1, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 1)],
                (numa, root, circle, switch),
            ),
            (
                "pairs over NUMA nodes",
                [(0, 0, -1, -1), (1, 0, -1, -1), (0, 1, -1, -1), (1, 1, -1, -1)],
                (circle, numa, root, switch),
            ),
        ):
            with self.subTest(name):
                self.assertEqual(expected, topology.nesting(places))


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
