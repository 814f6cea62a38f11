# SPDX-License-Identifier: Apache-2.0
"""Fleets in a real Placement and pages of servers, read by openstacksdk, its requests counted."""

from __future__ import annotations

import collections
import json
import math
import re
from types import SimpleNamespace
from typing import Any
from unittest import mock

from nova import test
from oslo_utils import uuidutils

from nova_gpu.core import names
from osc_gpu import usage
from tests.fixtures import nova_api
from tests.fixtures.cloud_gpus import PlacementWithGPUs
from tests.functional import sdk

_PAGE = 5
_EACH = 4
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_IN_PAGES = "/os-hypervisors/detail", "/servers/detail"
_SPOT = {"gpus": "= 1", "gpu:preemptible": "60s", "gpu:on_stop": "release"}


class ReadingTestCase(test.NoDBTestCase):
    USES_DB_SELF = True  # Placement's
    PAGE = _PAGE

    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(PlacementWithGPUs())
        self.asked: collections.Counter[str] = collections.Counter()
        self.nova = nova_api.NovaAPI(self.PAGE, self._note)
        self.spot = self.nova.add_flavor("spot", **_SPOT)
        self.firm = self.nova.add_flavor("firm", gpus="= 1")
        self.nova.add_flavor("one", gpus="= 1")
        self.nova.add_flavor("two", gpus="= 2")

    def _note(self, path: str) -> None:
        self.asked[_UUID.sub("UUID", path)] += 1

    def add_host(
        self, name: str, flavor: Any, count: int = _EACH, *, total: int = _EACH, vcpus: int = 64
    ) -> str:
        """A host with *count* servers; returns its group of GPUs"""
        node = self.placement.add_host(name, vcpus=vcpus)
        group = self.placement.add_group(node, total)
        self.nova.add_node(node, name)
        for _ in range(count):
            self.add_server(name, node, group, flavor)
        return group

    def add_server(self, host: str, node: str, group: str, flavor: Any, **more: Any) -> str:
        uuid = new_uuid()
        self.nova.add_server(uuid, host, flavor, **more)
        own = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}
        self.placement.allocate({node: own, group: {names.RESOURCE_CLASS: 1}}, uuid)
        return uuid

    def add_full_host(self) -> str:
        """A host whose only server has all of it; returns the server's uuid"""
        node = self.placement.add_host("full", vcpus=1)
        self.nova.add_node(node, "full")
        group = self.placement.add_group(node, 1)
        uuid = new_uuid()
        gone = self.nova.add_flavor("gone", **(_SPOT | {"gpu:on_preempt": "delete"}))
        self.nova.add_server(uuid, "full", gone)
        all_of_it = {"VCPU": 1, "MEMORY_MB": 65536, "DISK_GB": 1000}
        self.placement.allocate({node: all_of_it, group: {names.RESOURCE_CLASS: 1}}, uuid)
        return uuid

    def run_command(self, command: type, *arguments: str) -> list[dict[str, Any]]:
        status, printed, said = self.shown(command, *arguments, "-f", "json")
        self.assertEqual(0, status, said)
        return list(json.loads(printed))

    def shown(self, command: type, *arguments: str) -> tuple[int, str, str]:
        """As of :func:`tests.functional.sdk.shown`"""
        connection = self.connect()
        self.asked.clear()
        with mock.patch.object(sdk, "connect", lambda *_, **__: connection):
            return sdk.shown(None, command, *arguments)

    def connect(self) -> Any:
        """Return openstacksdk's connection to this cloud, whose requests are counted."""
        api = SimpleNamespace(base_url=nova_api.URL, project_id="p1")
        cloud = SimpleNamespace(api=api, placement=SimpleNamespace(fixture=self.placement))
        connection = sdk.connect(cloud)
        connection.session.session.mount(nova_api.URL, self.nova)
        send = connection.placement.request

        def request(url: str, *args: Any, **kwargs: Any) -> Any:
            self._note(url.partition("?")[0])
            return send(url, *args, **kwargs)

        connection.placement.request = request
        return connection

    def requests(self) -> dict[str, int]:
        """How many there were, but for pages, of which there are no more than need be"""
        things = self.nova.nodes, self.nova.servers
        self.assertEqual(tuple(math.ceil(len(each) / self.PAGE) for each in things), self.pages())
        return {path: count for path, count in self.asked.items() if path not in _IN_PAGES}

    def pages(self) -> tuple[int, ...]:
        return tuple(self.asked[path] for path in _IN_PAGES)

    def assertGrowsByPages(self, *commands: tuple[Any, ...]) -> None:
        """Assert that the same requests are made, whatever the number of hosts."""
        found: list[list[Any]] = []
        for count in (2, 8):
            for number in range(len(self.nova.nodes), count):
                self.add_host(f"host{number}", self.spot)
            found.append([])
            for command, *arguments in commands:
                rows = self.run_command(command, *arguments)
                found[-1].append(self.requests())
                if command is usage.ShowUsage:
                    there = {(each["Server"], each["Host"], each["GPUs"]) for each in rows}
                    self.assertEqual({(*each, 1) for each in self.placed()}, there)
        few, many = found
        self.assertEqual(few, many)
        self.assertLess(max(sum(each.values()) for each in many), 10)

    def placed(self) -> set[tuple[str, str]]:
        return {
            (each["id"], each["OS-EXT-SRV-ATTR:hypervisor_hostname"]) for each in self.nova.servers
        }


class ConsumersTest(ReadingTestCase):
    def test_requests_grow_by_pages_alone(self) -> None:
        self.assertGrowsByPages((usage.ShowUsage,))

    def usage(self) -> tuple[set[tuple[str, int, str]], int]:
        """Each server, what it has and the remark; and how many providers were asked about"""
        rows = self.run_command(usage.ShowUsage)
        asked = self.requests().get("/resource_providers/UUID/allocations", 0)
        return {(each["Server"], each["GPUs"], each["Remark"]) for each in rows}, asked

    def test_who_gave_them_back_has_none(self) -> None:
        group = self.add_host("host", self.spot, 1)
        has, gave = self.nova.servers[0]["id"], new_uuid()
        self.nova.add_server(gave, "host", self.spot, status="SHUTOFF")
        self.assertEqual(({(has, 1, "")}, 0), self.usage())
        # It has not yet: Placement's sum says so.
        self.placement.allocate({group: {names.RESOURCE_CLASS: 1}}, gave)
        self.assertEqual(({(has, 1, ""), (gave, 1, "")}, 1), self.usage())

    def test_moves_and_strangers_are_asked_for(self) -> None:
        self.add_host("quiet", self.firm, 1)
        group = self.add_host("busy", self.firm, 1)
        moved, has = (each["id"] for each in self.nova.servers)
        move, stranger = new_uuid(), new_uuid()
        for consumer in (move, stranger):
            self.placement.allocate({group: {names.RESOURCE_CLASS: 1}}, consumer)
        self.nova.migrations.append({"id": 1, "uuid": move, "instance_uuid": moved})
        remarks = "kept until its move is confirmed or reverted", usage._UNKNOWN
        found = {
            (has, 1, ""),
            (moved, 1, ""),
            *zip((moved, stranger), (1, 1), remarks, strict=True),
        }
        self.assertEqual((found, 1), self.usage())

    def test_which_of_a_hosts_products(self) -> None:
        node = self.placement.add_host("host")
        self.nova.add_node(node, "host")
        old = self.placement.add_group(node, 2, "fermi")
        new = self.placement.add_group(node, 2, "kepler", product_id="1028")
        for architecture, group in (("fermi", old), ("kepler", new)):
            flavor = self.nova.add_flavor(architecture, gpus="= 1", gpu_arch=f"s== {architecture}")
            self.add_server("host", node, group, flavor)
        rows = self.run_command(usage.ShowUsage)
        self.assertEqual(0, self.asked["/resource_providers/UUID/allocations"])
        self.assertEqual(["fermi", "kepler"], sorted(each["Architecture"] for each in rows))
        # A flavor that any would do for says of none which it has.
        last = self.add_server("host", node, new, self.firm)
        rows = self.run_command(usage.ShowUsage)
        (has,) = (each for each in rows if each["Server"] == last)
        self.assertEqual("kepler", has["Architecture"])
        self.assertEqual(1, self.asked["/resource_providers/UUID/allocations"])

    def test_a_node_that_has_nothing_left(self) -> None:
        uuid = self.add_full_host()
        self.assertEqual(({(uuid, 1, "")}, 0), self.usage())
        self.assertEqual(1, self.asked["/resource_providers/UUID/usages"])


def new_uuid() -> str:
    return str(uuidutils.generate_uuid())
