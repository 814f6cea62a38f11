# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import unittest

from nova_gpu.core import exception, model
from nova_gpu.core.topology import topology
from nova_gpu.host import nodes
from nova_gpu.host.pci import direct_links, kfd
from tests.fixtures import cards, hosts
from tests.fixtures.bases.host import HostTestCase
from tests.fixtures.nodes import Nodes

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
        gpus = [cards.placed(address) for address in (A, B, C)]
        numbers = list(
            topology.circles(direct_links.with_links(gpus, direct_links.parse(lines))).values()
        )
        return [numbers.index(number) for number in numbers]

    def test_what_is_said(self) -> None:
        for lines, circles in (
            ((), [0, 1, 2]),
            ((f"{A} {B}",), [0, 0, 2]),
            ((f"{A} {B} {C}",), [0, 0, 0]),
            ((f"{A} {D}",), [0, 1, 2]),  # D is not there
        ):
            self.assertEqual(circles, self.circles(*lines))

    def test_what_the_driver_knows_comes_first(self) -> None:
        gpus = [cards.placed(A, 0, [B]), cards.placed(B, 0, [A]), cards.placed(C)]
        linked_gpus = direct_links.with_links(gpus, direct_links.parse([f"{B} {C}"]))
        self.assertEqual(gpus[:2], list(linked_gpus[:2]))


class TestLinks(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.nodes = self.host.roots.sysfs / "class/kfd/kfd/topology/nodes"

    def links(self) -> dict[str, list[str]]:
        links_by_card = direct_links.of_xgmi(self.host.roots.sysfs)
        self.assertEqual(
            {model.LinkType.XGMI}, {link.type for links in links_by_card.values() for link in links}
        )
        return {
            str(card): [str(link.peer) for link in links] for card, links in links_by_card.items()
        }

    def test_all_to_all_without_the_cpu(self) -> None:
        self.host.add_xgmi(FOUR)
        self.assertEqual(
            {card: [peer for peer in FOUR if peer != card] for card in FOUR}, self.links()
        )

    def test_parts_of_a_split_card_are_one(self) -> None:
        self.host.add_xgmi(FOUR[:3])
        properties = self.nodes / "2/properties"  # becomes a second part of the first card
        split = 0x0300 | 1 << 28
        properties.write_text(f"simd_count 304\nlocation_id {split}\ndomain 0\n")
        self.assertEqual({FOUR[0]: [FOUR[2]], FOUR[2]: [FOUR[0]]}, self.links())

    def test_functions_of_one_slot_are_cards_of_their_own(self) -> None:
        self.host.add_xgmi(["0000:03:00.0", "0000:03:00.1"])
        self.assertEqual(["0000:03:00.0", "0000:03:00.1"], sorted(self.links()))
        (self.nodes / "1/properties").unlink()  # a node that cannot be read has none
        self.assertEqual({}, direct_links.of_xgmi(self.host.roots.sysfs))


SPLIT, OTHER = "0000:03:00.0", "0000:83:00.0"


class PartitionsTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.build("amd-intel", self.root / "amd-intel", Nodes.FILES)
        self.own = {card: self.nodes(card) for card in (SPLIT, OTHER)}

    def nodes(self, address: str) -> tuple[str, ...]:
        return nodes.own_nodes(self.gpu_at(address), self.host.roots)

    def obstacle(self, address: str) -> str | None:
        return kfd.obstacle(model.PciAddress.parse(address), self.host.roots)

    def test_the_nodes_of_all_parts(self) -> None:
        for in_function in (True, False):
            for dot in (False, True):
                shutil.rmtree(self.host.roots.sysfs / "class/kfd", ignore_errors=True)
                shutil.rmtree(self.host.roots.sysfs / "devices/platform", ignore_errors=True)
                self.host.split(SPLIT, 8, "CPX", in_function=in_function, dot=dot)
                self.host.split(OTHER, 2, "DPX", in_function=in_function, dot=dot)
                of_first, of_second = self.nodes(SPLIT), self.nodes(OTHER)
                self.assertEqual(16, len(of_first))
                self.assertEqual(8, sum("renderD" in node for node in of_first))
                self.assertEqual(4, len(of_second))
                self.assertEqual(set(), {*of_first} & {*of_second})
                self.assertLess({*self.own[SPLIT]}, {*of_first})
                self.assertIsNone(self.obstacle(SPLIT))
                self.assertIsNone(self.obstacle(OTHER))

    def test_all_are_seen_as_the_cards_own(self) -> None:
        self.host.split(SPLIT, 8, "CPX")
        for node in self.nodes(SPLIT):
            self.assertTrue(nodes.is_there(node, self.host.roots), node)
        address = model.PciAddress.parse(SPLIT)
        self.assertEqual(17, len(nodes.guest_nodes(address, self.host.roots)))

    def test_refused_where_kfd_does_not_tell(self) -> None:
        self.host.split(SPLIT, 4, "QPX")
        kfd_nodes = self.host.roots.sysfs / "class/kfd/kfd/topology/nodes"
        for gone, left in (
            (kfd_nodes / "3", 3),
            (self.host.roots.sysfs / "devices/platform/amdgpu_xcp_0", 2),
            (self.host.roots.sysfs / "class/kfd", 0),
        ):
            shutil.rmtree(gone)
            reason = str(self.obstacle(SPLIT))
            self.assertIn(
                "it is partitioned (QPX), and KFD reports the render node of only ", reason
            )
            self.assertIn(f"of only {left}", reason)
            self.assertIn("--compute-partition SPX", reason)
