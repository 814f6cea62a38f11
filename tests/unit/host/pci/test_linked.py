# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.topology import topology
from nova_gpu.host.pci import linked
from tests.fixtures import cards

A, B, C, D = (f"0000:{bus:02x}:00.0" for bus in (0x04, 0x05, 0x88, 0x89))


class ParseTest(unittest.TestCase):
    def test_sets(self) -> None:
        expected = [frozenset(cards.addresses(A, B)), frozenset(cards.addresses(C, D))]
        self.assertEqual(expected, linked.parse([f" {A}  {B}", f"{D} {C}"]))

    def test_refused(self) -> None:
        for lines, part in (
            ([A], "two cards or more"),
            ([f"{A} {A}"], "two cards or more"),
            ([f"{A} 05:00.0"], "not a PCI address"),
            ([f"{A} {B}", f"{C} {B}"], f"{B} is in another"),
        ):
            with self.subTest(lines=lines), self.assertRaises(exception.InvalidOption) as caught:
                linked.parse(lines)
            self.assertIn(part, str(caught.exception))
            self.assertIn("[gpu]link_groups", str(caught.exception))


class WithLinksTest(unittest.TestCase):
    def circles(self, *lines: str) -> list[int]:
        """Of A, B and C, each with the index of the first card in its circle"""
        gpus = [cards.placed(each) for each in (A, B, C)]
        numbers = list(topology.circles(linked.with_links(gpus, linked.parse(lines))).values())
        return [numbers.index(number) for number in numbers]

    def test_what_is_said(self) -> None:
        self.assertEqual([0, 1, 2], self.circles())
        self.assertEqual([0, 0, 2], self.circles(f"{A} {B}"))
        self.assertEqual([0, 0, 0], self.circles(f"{A} {B} {C}"))

    def test_a_card_that_is_not_there(self) -> None:
        self.assertEqual([0, 1, 2], self.circles(f"{A} {D}"))

    def test_what_the_driver_knows_comes_first(self) -> None:
        gpus = [cards.placed(A, 0, [B]), cards.placed(B, 0, [A]), cards.placed(C)]
        found = linked.with_links(gpus, linked.parse([f"{B} {C}"]))
        self.assertEqual(gpus[:2], list(found[:2]))
