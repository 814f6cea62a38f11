# SPDX-License-Identifier: Apache-2.0
"""Two MI300X of which the first is in parts: what a guest of each gets."""

from __future__ import annotations

import shutil

from nova_gpu.core import model
from nova_gpu.host import nodes
from nova_gpu.host.pci import direct_links, kfd
from tests.fixtures import hosts
from tests.fixtures.bases.host import HostTestCase
from tests.fixtures.nodes import Nodes

SPLIT, OTHER = "0000:03:00.0", "0000:83:00.0"


class PartitionsTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.build("amd-intel", self.root / "amd-intel", Nodes.FILES)
        self.own = {each: self.nodes(each) for each in (SPLIT, OTHER)}

    def nodes(self, address: str) -> tuple[str, ...]:
        return nodes.own_nodes(self.gpu_at(address), self.host.roots)

    def obstacle(self, address: str) -> str | None:
        return kfd.obstacle(model.PciAddress.parse(address), self.host.roots)

    def test_a_whole_card(self) -> None:
        (self.host.path(SPLIT) / "current_compute_partition").write_text("SPX\n")
        self.assertEqual(2, len(self.nodes(SPLIT)))
        self.assertIsNone(self.obstacle(SPLIT))
        self.assertIsNone(self.obstacle(OTHER))  # its driver knows no parts

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
        shutil.rmtree(self.host.roots.sysfs / "class/kfd/kfd/topology/nodes/3")
        said = str(self.obstacle(SPLIT))
        self.assertIn("it is partitioned (QPX), and KFD reports the render node of only 3", said)
        self.assertIn("--compute-partition SPX", said)
        shutil.rmtree(self.host.roots.sysfs / "class/kfd")
        self.assertIn("render node of only 0", str(self.obstacle(SPLIT)))

    def test_refused_where_a_node_is_not_there(self) -> None:
        self.host.split(SPLIT, 2, "DPX")
        shutil.rmtree(self.host.roots.sysfs / "devices/platform/amdgpu_xcp_0")
        self.assertIn("render node of only 1", str(self.obstacle(SPLIT)))

    def test_links_between_parts_are_none(self) -> None:
        self.host.split(SPLIT, 2, "DPX")
        topology = self.host.roots.sysfs / "class/kfd/kfd/topology/nodes"
        (topology / "1/io_links/0").mkdir(parents=True)
        (topology / "1/io_links/0/properties").write_text("type 11\nnode_from 1\nnode_to 2\n")
        self.assertEqual({}, direct_links.of_xgmi(self.host.roots.sysfs))
