# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import types
import unittest
from typing import Any
from unittest import mock

from nova import objects

from nova_gpu.core import exception
from nova_gpu.virt.inventory import counting, placement_client
from nova_gpu.virt.inventory.placement_client import Written
from tests.fixtures.bases.stops import StartsTestCase
from tests.fixtures.counted import NODE, Placement

GROUP, OTHER = "group", "another group"
FLAVOR = objects.Flavor(vcpus=1, memory_mb=0, root_gb=0, ephemeral_gb=0, swap=0, extra_specs={})
INSTANCE = objects.Instance(
    uuid="uuid",
    project_id="project",
    user_id="user",
    node="host1",
    image_ref="image",
    flavor=FLAVOR,
)


def write(client: Placement, amounts: dict[str, Any], *, has_them: bool = False) -> Written:
    groups = {GROUP, *amounts}
    return placement_client.write_allocations(client, INSTANCE, groups, amounts, has_them=has_them)


class AllocationsTest(unittest.TestCase):
    def setUp(self) -> None:
        # It asks the database.
        name = "nova.compute.utils.is_volume_backed_instance"
        patch = mock.patch(name, return_value=False)
        patch.start()
        self.addCleanup(patch.stop)

    def test_gpus_alone_are_replaced(self) -> None:
        counted = {NODE: {"VCPU": 1}, GROUP: {"PGPU": 4, "CUSTOM_X": 1}, OTHER: {"VGPU": 1}}
        client = Placement(counted)
        self.assertEqual({GROUP}, set(placement_client.allocations(client, "uuid", {GROUP, NODE})))
        self.assertEqual(Written.WHOLE, write(client, {}))
        left = {NODE: {"VCPU": 1}, GROUP: {"CUSTOM_X": 1}, OTHER: {"VGPU": 1}}
        self.assertEqual(left, client.resources)
        self.assertEqual(Written.WHOLE, write(client, {OTHER: {}, GROUP: {"PGPU": 2}}))
        both = {NODE: {"VCPU": 1}, GROUP: {"CUSTOM_X": 1, "PGPU": 2}}
        self.assertEqual(both, client.resources)

    def test_others_write_it_too(self) -> None:
        client = Placement({GROUP: {"PGPU": 4}}, conflicts=2)
        self.assertEqual(Written.WHOLE, write(client, {}))
        with self.assertRaisesRegex(exception.PlacementFailed, "during each of 3 attempts"):
            write(Placement({}, conflicts=9), {})

    def test_none_is_without_the_nodes_part(self) -> None:
        """Of what the node offers: its disk may be another provider's."""
        for counted in ({}, {GROUP: {"PGPU": 1}}):
            client = Placement(counted)
            self.assertEqual(Written.WHOLE, write(client, {GROUP: {"PGPU": 1}}))
            self.assertEqual({NODE: {"VCPU": 1}, GROUP: {"PGPU": 1}}, client.resources)

    def test_what_it_has_is_counted_where_the_node_is_full(self) -> None:
        client = Placement({})
        client.full_nodes.add(NODE)
        amounts = {GROUP: {"PGPU": 1}}
        self.assertEqual(Written.NONE, write(client, amounts))
        self.assertEqual({}, client.resources)
        full = Placement({NODE: {"VCPU": 1}}, full=True)
        self.assertEqual(Written.NONE, write(full, amounts))
        self.assertEqual(Written.NONE, write(full, amounts, has_them=True))
        self.assertEqual(Written.WITHOUT_NODE, write(client, amounts, has_them=True))
        self.assertEqual(amounts, client.resources)


class ChooseTest(StartsTestCase):
    def assertRefused(self, message: str) -> exception.NoneFree:
        refused = self.assertRaises(exception.NoneFree, self.counting.count, self.instance)
        self.assertIn(message, str(refused))
        self.assertTrue(counting.is_without(self.instance))
        return refused

    def test_others_have_them(self) -> None:
        self.placement.counted[OTHER] = {self.group: {"resources": {"PGPU": 1}}}
        refused = self.assertRefused("at most 1 free on its host")
        self.assertIn(f"in use by {OTHER}", str(refused))

    def test_other_than_the_image_wants(self) -> None:
        wanted = {"traits_required": ["CUSTOM_GPU_ARCH_FERMI"]}
        image = types.SimpleNamespace(properties=wanted)
        with mock.patch.object(objects.Instance, "image_meta", image):
            self.assertRefused("at most 2 free")
