# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import topology
from nova_gpu.core.model import GPU
from tests.fixtures import cards

A, B, C, D = (f"0000:{bus:02x}:00.0" for bus in (0x04, 0x05, 0x88, 0x89))


class PlacesTest(unittest.TestCase):
    def assertPlaces(self, expected: list[tuple[int, int]], *gpus: GPU) -> None:
        """Compared up to the circles' numbers, which mean nothing."""
        places = topology.places(gpus)
        found = [places[gpu.address] for gpu in gpus]
        self.assertEqual([numa for _, numa in expected], [numa for _, numa in found])
        circles, wanted = ([circle for circle, _ in each] for each in (found, expected))
        self.assertEqual(
            [[one == other for other in wanted] for one in wanted],
            [[one == other for other in circles] for one in circles],
        )

    def test_without_links_only_numa_tells_them_apart(self) -> None:
        self.assertPlaces([(0, 0), (0, 1)], cards.placed(A, 0), cards.placed(C, 1))

    def test_unknown_numa_node_is_one_of_its_own(self) -> None:
        self.assertPlaces([(0, 0), (0, -1)], cards.placed(A, 0), cards.placed(B, None))

    def test_pairs(self) -> None:
        self.assertPlaces(
            [(0, 0), (0, 0), (1, 1), (1, 1)],
            cards.placed(A, 0, [B]),
            cards.placed(B, 0, [A]),
            cards.placed(C, 1, [D]),
            cards.placed(D, 1, [C]),
        )

    def test_a_chain_is_one_circle(self) -> None:
        self.assertPlaces(
            [(0, 0), (0, 0), (0, 1)],
            cards.placed(A, 0, [B]),
            cards.placed(B, 0, [A, C]),
            cards.placed(C, 1, [B]),
        )

    def test_beside_linked_ones_an_unlinked_card_is_alone(self) -> None:
        self.assertPlaces(
            [(0, 0), (1, 0), (2, 0), (2, 0)],
            cards.placed(A, 0),
            cards.placed(B, 0),
            cards.placed(C, 0, [D]),
            cards.placed(D, 0, [C]),
        )

    def test_a_peer_that_is_not_there_joins_nothing(self) -> None:
        self.assertPlaces([(0, 0), (0, 0)], cards.placed(A, 0, [C]), cards.placed(B, 0, [D]))

    def test_nothing(self) -> None:
        self.assertEqual({}, topology.places(()))
