# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception, model
from nova_gpu.core.topology import topology
from nova_gpu.host.pci import direct_links
from tests.fixtures import cards
from tests.fixtures.bases.host import HostTestCase

A, B, C, D = (f"0000:{bus:02x}:00.0" for bus in (0x04, 0x05, 0x88, 0x89))

FOUR = ["0000:03:00.0", "0000:26:00.0", "0000:43:00.0", "10000:63:02.1"]


class ParseTest(unittest.TestCase):
    def test_sets(self) -> None:
        expected = [frozenset(cards.addresses(A, B)), frozenset(cards.addresses(C, D))]
        self.assertEqual(expected, direct_links.parse([f" {A}  {B}", f"{D} {C}"]))

    def test_refused(self) -> None:
        for lines, part in (
            ([A], "two cards or more"),
            ([f"{A} {A}"], "two cards or more"),
            ([f"{A} 05:00.0"], "not a PCI address"),
            ([f"{A} {B}", f"{C} {B}"], f"{B} is in another"),
        ):
            with self.subTest(lines=lines), self.assertRaises(exception.InvalidOption) as caught:
                direct_links.parse(lines)
            self.assertIn(part, str(caught.exception))
            self.assertIn("[gpu]link_groups", str(caught.exception))


class WithLinksTest(unittest.TestCase):
    def circles(self, *lines: str) -> list[int]:
        """Of A, B and C, each with the index of the first card in its circle"""
        gpus = [cards.placed(each) for each in (A, B, C)]
        numbers = list(
            topology.circles(direct_links.with_links(gpus, direct_links.parse(lines))).values()
        )
        return [numbers.index(number) for number in numbers]

    def test_what_is_said(self) -> None:
        self.assertEqual([0, 1, 2], self.circles())
        self.assertEqual([0, 0, 2], self.circles(f"{A} {B}"))
        self.assertEqual([0, 0, 0], self.circles(f"{A} {B} {C}"))

    def test_a_card_that_is_not_there(self) -> None:
        self.assertEqual([0, 1, 2], self.circles(f"{A} {D}"))

    def test_what_the_driver_knows_comes_first(self) -> None:
        gpus = [cards.placed(A, 0, [B]), cards.placed(B, 0, [A]), cards.placed(C)]
        found = direct_links.with_links(gpus, direct_links.parse([f"{B} {C}"]))
        self.assertEqual(gpus[:2], list(found[:2]))


class TestLinks(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.nodes = self.host.roots.sysfs / "class/kfd/kfd/topology/nodes"

    def links(self) -> dict[str, list[str]]:
        found = direct_links.of_xgmi(self.host.roots.sysfs)
        self.assertEqual(
            {model.LinkType.XGMI}, {link.type for links in found.values() for link in links}
        )
        return {str(card): [str(link.peer) for link in links] for card, links in found.items()}

    def test_all_to_all_without_the_cpu(self) -> None:
        self.host.add_xgmi(FOUR)
        self.assertEqual(
            {card: [peer for peer in FOUR if peer != card] for card in FOUR}, self.links()
        )

    def test_pcie_is_no_link(self) -> None:
        self.host.add_xgmi(FOUR[:3])
        for path in self.nodes.glob("1/io_links/*/properties"):
            path.write_text(path.read_text().replace("type 11", "type 2"))
        self.assertEqual({FOUR[1]: [FOUR[0], FOUR[2]], FOUR[2]: FOUR[:2]}, self.links())

    def test_parts_of_a_split_card_are_one(self) -> None:
        self.host.add_xgmi(FOUR[:3])
        properties = self.nodes / "2/properties"  # becomes a second part of the first card
        split = 0x0300 | 1 << 28
        properties.write_text(f"simd_count 304\nlocation_id {split}\ndomain 0\n")
        self.assertEqual({FOUR[0]: [FOUR[2]], FOUR[2]: [FOUR[0]]}, self.links())

    def test_parts_that_are_numbered_as_functions_are_one(self) -> None:
        """As some releases number them: tests/recorded/kfd.yaml"""
        self.host.add_xgmi(FOUR[:3])
        for node, location, serial in ((1, 0x0300, 7), (2, 0x0301, 7), (3, 0x4300, 8)):
            properties = self.nodes / f"{node}/properties"
            properties.write_text(
                f"simd_count 152\nlocation_id {location}\ndomain 0\nunique_id {serial}\n"
            )
        self.assertEqual({FOUR[0]: [FOUR[2]], FOUR[2]: [FOUR[0]]}, self.links())

    def test_functions_of_one_slot_are_cards_of_their_own(self) -> None:
        self.host.add_xgmi(["0000:03:00.0", "0000:03:00.1"])
        self.assertEqual(["0000:03:00.0", "0000:03:00.1"], sorted(self.links()))

    def test_unreadable_node_has_no_links(self) -> None:
        self.host.add_xgmi(FOUR[:3])
        (self.nodes / "1/properties").unlink()
        self.assertEqual({FOUR[1]: [FOUR[2]], FOUR[2]: [FOUR[1]]}, self.links())

    def test_no_kfd(self) -> None:
        self.assertEqual({}, direct_links.of_xgmi(self.host.roots.sysfs))
