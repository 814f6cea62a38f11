# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

import requests
from nova import objects

from nova_gpu.core import exception
from nova_gpu.virt.inventory import placement_client
from tests.fixtures.counted import Placement

NODE, GROUP, OTHER = "node", "group", "another group"
INSTANCE = objects.Instance(uuid="uuid", project_id="project", user_id="user")


class _Client:
    """Nova's report client gives what keystoneauth gives: an answer of requests'."""

    def __init__(self, status: int, body: bytes) -> None:
        self._answer = requests.Response()
        self._answer.status_code = status
        self._answer._content = body
        self.asked: list[str] = []

    def get(self, url: str, version: str) -> requests.Response:
        self.asked.append(url)
        return self._answer


class GetTest(unittest.TestCase):
    def test_the_body(self) -> None:
        client = _Client(200, b'{"inventories": {}}')
        self.assertEqual({"inventories": {}}, placement_client.get(client, "/resource_providers"))
        self.assertEqual(["/resource_providers"], client.asked)

    def test_an_answer_that_is_none_to_use(self) -> None:
        with self.assertRaises(exception.PlacementFailed) as raised:
            placement_client.get(_Client(503, b"maintenance"), "/usages")
        self.assertIn("/usages", str(raised.exception))
        self.assertIn("503 maintenance", str(raised.exception))


class AllocationsTest(unittest.TestCase):
    def test_gpus_alone_are_replaced(self) -> None:
        client = Placement({NODE: {"VCPU": 1}, GROUP: {"PGPU": 4}, OTHER: {"VGPU": 1}})
        self.assertTrue(placement_client.write_allocations(client, INSTANCE, {GROUP}, {}))
        self.assertEqual({NODE: {"VCPU": 1}, OTHER: {"VGPU": 1}}, client.resources)
        amounts = {GROUP: {"PGPU": 2}}
        self.assertTrue(
            placement_client.write_allocations(client, INSTANCE, {GROUP, OTHER}, amounts)
        )
        self.assertEqual({NODE: {"VCPU": 1}, GROUP: {"PGPU": 2}}, client.resources)

    def test_what_else_a_provider_gives_stays(self) -> None:
        client = Placement({GROUP: {"PGPU": 4, "CUSTOM_X": 1}})
        placement_client.write_allocations(client, INSTANCE, {GROUP}, {})
        self.assertEqual({GROUP: {"CUSTOM_X": 1}}, client.resources)

    def test_no_room(self) -> None:
        client = Placement({NODE: {"VCPU": 1}}, full=True)
        self.assertFalse(
            placement_client.write_allocations(client, INSTANCE, {GROUP}, {GROUP: {"PGPU": 1}})
        )

    def test_others_write_it_too(self) -> None:
        client = Placement({GROUP: {"PGPU": 4}}, conflicts=2)
        self.assertTrue(placement_client.write_allocations(client, INSTANCE, {GROUP}, {}))
        with self.assertRaisesRegex(exception.PlacementFailed, "during each of 3 attempts"):
            placement_client.write_allocations(Placement({}, conflicts=9), INSTANCE, {GROUP}, {})

    def test_beside_what_is_not_counted_at_all(self) -> None:
        client = Placement({})
        beside = {NODE: {"resources": {"VCPU": 1}}}
        amounts = {GROUP: {"PGPU": 1}}
        found = placement_client.read_consumer(client, "uuid")
        placement_client.write_consumer(
            client, INSTANCE, found, {GROUP}, amounts, lambda: dict(beside)
        )
        self.assertEqual({NODE: {"VCPU": 1}, GROUP: {"PGPU": 1}}, client.resources)

    def test_of_groups(self) -> None:
        client = Placement({NODE: {"VCPU": 1}, GROUP: {"PGPU": 4}, OTHER: {"VGPU": 1}})
        self.assertEqual({GROUP}, set(placement_client.allocations(client, "uuid", {GROUP, NODE})))
