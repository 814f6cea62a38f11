# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova import objects
from nova.compute import provider_tree as nova_provider_tree
from oslo_utils import uuidutils

from nova_gpu.core.model import DeliveryMode, GPUGroup, GroupKey, Product
from nova_gpu.core.placement import inventory
from nova_gpu.virt.inventory import provider_tree
from tests.fixtures import cards

ROOT, ROOT_2, ANOTHER = (uuidutils.generate_uuid() for _ in range(3))

FERMI = Product("10de", "1091", "Tesla M2090", "fermi")
KEY = GroupKey("10de", "1091", DeliveryMode.LXC)
OTHER = GroupKey("10de", "1023", DeliveryMode.LXC)
A, B = (cards.placed(address, product=FERMI) for address in ("0000:04:00.0", "0000:05:00.0"))
GROUP = GPUGroup(KEY, FERMI, {gpu.address: gpu for gpu in (A, B)}, {})
NAME = "node_gpu_10de_1091_lxc"


class Nobody:
    """A supply that is not asked."""


class ProviderTreeTest(unittest.TestCase):
    def setUp(self) -> None:
        objects.register_all()
        self.tree = nova_provider_tree.ProviderTree()
        self.tree.new_root("node", ROOT)
        self.supply = Nobody()

    def _publish(self, group: GPUGroup = GROUP, reserved: int = 0) -> str:
        present = provider_tree.groups_in(self.tree, "node", in_parts=False)
        found = provider_tree.ensure(self.tree, "node", present, [group.key])
        uuid = found[group.key]
        offer = provider_tree.Offer(
            inventory.inventory(len(group.gpus), reserved),
            lambda present: provider_tree.traits(group.product, "LXC", present),
            group.gpus,
        )
        provider_tree.publish(self.tree, uuid, group.key, offer, self.supply)
        return uuid

    def test_a_group_is_a_child_of_the_node(self) -> None:
        uuid = self._publish()
        data = self.tree.data(uuid)
        self.assertEqual((NAME, ROOT), (data.name, data.parent_uuid))
        self.assertEqual(["PGPU"], list(data.inventory))
        self.assertEqual(2, data.inventory["PGPU"]["total"])
        self.assertEqual(0, data.inventory["PGPU"]["reserved"])
        identifiers = {each.identifier for each in data.resources["PGPU"]}
        self.assertEqual({str(A.address), str(B.address)}, identifiers)
        self.assertEqual({uuid}, {each.provider_uuid for each in data.resources["PGPU"]})

    def test_made_once(self) -> None:
        self.assertEqual(self._publish(), self._publish())
        self.assertEqual(2, len(self.tree.get_provider_uuids()))

    def test_traits(self) -> None:
        uuid = self._publish()
        traits = self.tree.data(uuid).traits
        self.assertLessEqual({"OWNER_NOVA", "CUSTOM_GPU", "CUSTOM_GPU_ARCH_FERMI"}, traits)
        # and none of ours on the node, where it would satisfy a query without choosing a group
        self.assertEqual(set(), self.tree.data(ROOT).traits)

    def test_operators_traits_stay(self) -> None:
        uuid = self._publish()
        self.tree.add_traits(uuid, "CUSTOM_RACK_7")
        self._publish()
        self.assertIn("CUSTOM_RACK_7", self.tree.data(uuid).traits)

    def test_reserved(self) -> None:
        self.assertEqual(1, self.tree.data(self._publish(reserved=1)).inventory["PGPU"]["reserved"])

    def test_groups_of_earlier_times_are_found(self) -> None:
        uuid = self._publish()
        self.tree.new_child("node_0000:05:00.0", ROOT)
        self.tree.new_child("node_gpu_10de_1023_lxc", ROOT, uuid=ANOTHER)
        self.tree.new_child("node_gpu_10de_1bb3_vgpu_nvidia-63", ROOT, uuid=ROOT_2)
        whole = provider_tree.groups_in(self.tree, "node", in_parts=False)
        self.assertEqual({KEY: uuid, OTHER: ANOTHER}, whole)
        parts = GroupKey.of_parts("10de", "1bb3", "nvidia-63")
        found = provider_tree.groups_in(self.tree, "node", in_parts=True)
        self.assertEqual({parts: ROOT_2}, found)

    def test_another_nodes_groups_are_not_ours(self) -> None:
        self.tree.new_root("node2", ROOT_2)
        self.tree.new_child("node2_gpu_10de_1091_lxc", ROOT_2)
        self.assertEqual({}, provider_tree.groups_in(self.tree, "node", in_parts=False))

    def test_withdrawn_keeps_its_inventory_all_reserved(self) -> None:
        uuid = self._publish()
        provider_tree.withdraw(self.tree, uuid, KEY, self.supply)
        inventory = self.tree.data(uuid).inventory["PGPU"]
        self.assertEqual((2, 2), (inventory["total"], inventory["reserved"]))
        self.assertEqual(set(), self.tree.data(uuid).resources["PGPU"])
        provider_tree.withdraw(self.tree, uuid, KEY, self.supply)
