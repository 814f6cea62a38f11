# SPDX-License-Identifier: Apache-2.0
"""Over a real Placement, asked by openstacksdk; what Nova says is made up."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from keystoneauth1 import session
from nova import test
from openstack import connection

from nova_gpu.core.scheduling import capacity
from nova_gpu.osc import fleet, rest
from tests.fixtures.cloud_gpus import PlacementWithGPUs
from tests.functional.sdk import Auth


class FleetTest(test.NoDBTestCase):
    USES_DB_SELF = True  # Placement's

    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(PlacementWithGPUs())
        self.nodes: list[Any] = []
        self.flavors: list[Any] = []
        self.asked: collections.Counter[str] = collections.Counter()

    def add_host(self, name: str) -> str:
        uuid = self.placement.add_host(name, vcpus=16)
        node = SimpleNamespace(id=uuid, name=name, state="up", status="enabled", service_details={})
        self.nodes.append(node)
        return uuid

    def add_flavor(self, name: str, **words: str) -> None:
        size = {"vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0}
        self.flavors.append(SimpleNamespace(name=name, extra_specs=words, **size))

    def read(self, token: str = "admin") -> fleet.Fleet:
        endpoints = {"placement": self.placement.endpoint}
        real = connection.Connection(
            session=session.Session(auth=Auth(endpoints, {"X-Auth-Token": token}))
        )

        def get(url: str, **options: Any) -> Any:
            self.asked[url] += 1
            return real.placement.get(url, **options)

        def hypervisors(details: bool) -> Iterator[Any]:
            self.asked["hypervisors"] += 1
            yield from self.nodes

        compute = SimpleNamespace(
            hypervisors=hypervisors,
            flavors=lambda **options: iter(self.flavors),
            servers=lambda **options: iter(()),
            get_server=lambda uuid: SimpleNamespace(id=uuid, name="vm", project_id="p1"),
        )
        return fleet.read(SimpleNamespace(placement=SimpleNamespace(get=get), compute=compute))

    def test_all_of_it_from_one_look(self) -> None:
        free, full = self.add_host("free"), self.add_host("full")
        roomy = self.placement.add_group(free, 8, used=2, reserved=1)
        packed = self.placement.add_group(full, 4, used=4)
        self.add_flavor("two", gpus="= 2", gpu_arch="s== fermi")
        self.add_flavor("four", gpus="= 4")
        self.add_flavor("plain")
        self.add_flavor("wrong", gpus="two")
        found = self.read()
        self.assertEqual(
            [("free", 8, 1, 2), ("full", 4, 0, 4)],
            [(g.host, g.group.total, g.group.reserved, g.group.used) for g in found.groups],
        )
        self.assertEqual(
            [("free", "vm", 2), ("full", "vm", 4)],
            [(each.provider.host, each.name, each.gpus) for each in found.held],
        )
        could = {each.flavor: capacity.could_boot(each.answers) for each in found.capacities}
        self.assertEqual({"four": (1, 1), "two": (2, 1), "wrong": (0, 0)}, could)
        self.assertIn("not a whole number", found.capacities[-1].wrong)

        self.assertEqual([], [url for url, times in self.asked.items() if times > 1])
        of_group = collections.Counter(
            uuid for uuid in (roomy, packed) for url in self.asked if uuid in url
        )
        self.assertEqual({roomy: 2, packed: 4}, of_group)

    def test_gpus_and_vgpus_are_counted_apart(self) -> None:
        host = self.add_host("host")
        self.placement.add_group(host, 8, used=2)
        self.placement.add_vgpus(host, 8, "nvidia-35", used=5)
        held = [(each.gpus, each.vgpus) for each in self.read().held]
        self.assertEqual([(0, 5), (2, 0)], sorted(held))

    def test_who_may_not_know(self) -> None:
        self.add_host("free")
        self.assertRaises(rest.Refused, self.read, token="user:project")

    def test_nobody_has_gpus(self) -> None:
        self.add_host("host")
        self.add_flavor("two", gpus="= 2")
        found = self.read()
        self.assertEqual(((), ()), (found.groups, found.held))
        self.assertEqual(((),), tuple(each.answers for each in found.capacities))
