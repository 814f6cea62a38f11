# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from urllib import parse

from nova import context as nova_context
from nova import objects, test
from nova.scheduler import utils
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.core import exception
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.placement.inventory import Inventory
from nova_gpu.scheduler import placement
from tests.fixtures.cloud_gpus import PlacementWithGPUs, request_spec


class NarrowedTest(unittest.TestCase):
    def narrowed(self, spec: objects.RequestSpec) -> dict[str, str]:
        query = utils.ResourceRequest.from_request_spec(spec).to_querystring()
        pairs = parse.parse_qsl(placement.narrowed(query))
        self.assertEqual(len(pairs), len(dict(pairs)))
        return dict(pairs)

    def test_gpus_and_the_hosts_own_resources_stay(self) -> None:
        spec = request_spec(
            {"resources:PGPU": "2", "trait:CUSTOM_GPU": "required", "trait:A": "forbidden"}
        )
        spec.root_required.add("OWNER_NOVA")
        spec.root_forbidden.add("COMPUTE_STATUS_DISABLED")
        self.assertEqual(
            {
                "limit": "1",
                "resources": "DISK_GB:10,MEMORY_MB:512,PGPU:2,VCPU:1",
                "required": "CUSTOM_GPU,!A",
                "root_required": "OWNER_NOVA,!COMPUTE_STATUS_DISABLED",
            },
            self.narrowed(spec),
        )

    def test_other_devices_go(self) -> None:
        spec = request_spec(
            {
                "resources1:PGPU": "1",
                "trait1:CUSTOM_GPU": "required",
                "resources2:CUSTOM_NIC": "1",
                "trait2:CUSTOM_FAST": "required",
                "resources3:CUSTOM_PGPU": "1",
                "group_policy": "isolate",
            }
        )
        spec.requested_resources = [
            objects.RequestGroup(requester_id=uuids.port, resources={"CUSTOM_NIC": 1})
        ]
        spec.request_level_params.same_subtree = [["1", "2"]]
        self.assertEqual(
            {
                "limit": "1",
                "resources": "DISK_GB:10,MEMORY_MB:512,VCPU:1",
                "resources1": "PGPU:1",
                "required1": "CUSTOM_GPU",
            },
            self.narrowed(spec),
        )

    def test_two_groups_of_gpus_keep_their_policy(self) -> None:
        spec = request_spec(
            {"resources1:PGPU": "1", "resources_b:PGPU": "1", "group_policy": "isolate"}
        )
        query = self.narrowed(spec)
        self.assertEqual(
            ("isolate", "PGPU:1", "PGPU:1"),
            (query["group_policy"], query["resources1"], query["resources_b"]),
        )


class AnswerTest(test.NoDBTestCase):
    USES_DB_SELF = True  # Placement's

    def setUp(self) -> None:
        super().setUp()
        self.context = nova_context.RequestContext("user", "project")
        self.placement = self.useFixture(PlacementWithGPUs())
        host = self.placement.add_host("host1")
        self.placement.add_group(host, 8, "fermi", reserved=1, used=3)
        self.placement.add_group(host, 4, "ada", product_id="2684")

    def offers(self, group: GroupRequest) -> list[Inventory]:
        return placement.offers(self.context, placement.providers(self.context, group))

    def test_offers(self) -> None:
        fermi, ada = (
            Inventory(total=8, reserved=1, used=3, max_unit=8),
            Inventory(total=4, reserved=0, used=0, max_unit=4),
        )
        traits = {name: frozenset({f"CUSTOM_GPU_ARCH_{name}"}) for name in ("FERMI", "ADA", "NO")}
        for group, expected in (
            (GroupRequest("", 1, traits["FERMI"]), [fermi]),
            (GroupRequest("", 1, frozenset({"CUSTOM_GPU"}), traits["FERMI"]), [ada]),
            (GroupRequest("", 1, traits["FERMI"] | traits["ADA"]), []),
            (GroupRequest("", 1, traits["NO"]), []),
        ):
            with self.subTest(group=group):
                self.assertEqual(expected, self.offers(group))
        self.assertCountEqual(
            [fermi, ada], self.offers(GroupRequest("", 1, frozenset({"CUSTOM_GPU"})))
        )

    def test_room(self) -> None:
        """Four are free of each of two groups: what is left of one is no use for another."""
        for query, expected in (
            ("resources=PGPU:1", 8),
            ("resources=PGPU:3", 2),
            ("resources=PGPU:5", None),
            ("resources=PGPU:2&required=CUSTOM_GPU_ARCH_ADA", 2),
            ("resources1=PGPU:1&resources2=PGPU:3&group_policy=none", 2),
        ):
            with self.subTest(query):
                self.assertEqual(expected, placement.room(self.context, query, "PGPU"))

    def test_a_query_placement_refuses_is_no_answer(self) -> None:
        query = "resources=CUSTOM_NO_SUCH_CLASS:1,PGPU:1"
        failed = self.assertRaises(
            exception.PlacementFailed, placement.has_candidate, self.context, query
        )
        self.assertIn("400", str(failed))
        # but a trait nobody knows is one
        query = "resources=PGPU:1&required=CUSTOM_NO_SUCH_TRAIT"
        self.assertFalse(placement.has_candidate(self.context, query))
