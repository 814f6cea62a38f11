# SPDX-License-Identifier: Apache-2.0
"""Over a real Placement, asked by openstacksdk; what Nova says is made up."""

from __future__ import annotations

import base64
import collections
import dataclasses
import datetime
import hashlib
import re
import unittest
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from keystoneauth1 import session
from lxml import html
from nova import test
from openstack import connection

from nova_gpu.core.scheduling import capacity
from nova_gpu.core.scheduling.capacity import Answer, Group
from osc_gpu import report
from osc_gpu.report import Capacity, Fleet
from osc_gpu.usage import Held
from tests.fixtures.cloud_gpus import PlacementWithGPUs
from tests.fixtures.reports import PROVIDER, TRAITS
from tests.functional.sdk import Auth

_WHEN = datetime.datetime(2026, 11, 22, 2, 30)
_HELD = Held("5f7c", "first", "p1", "", PROVIDER, 2)
_ANSWERS = (
    Answer("host1", 2, 5, 7, "no more GPUs"),
    Answer("host2", 0, 0, 8, "2 GPUs asked for, 0 of 8 free"),
)
_CAPACITY = Capacity("cg1.xlarge", "2 GPUs", _ANSWERS)
_FLEET = Fleet((PROVIDER,), (_HELD,), (_CAPACITY,))


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

    def read(self, token: str = "admin") -> report.Fleet:
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
        return report.read(SimpleNamespace(placement=SimpleNamespace(get=get), compute=compute))

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
        self.assertEqual({roomy: 2, packed: 2}, of_group)

    def test_nobody_has_gpus(self) -> None:
        self.add_host("host")
        self.add_flavor("two", gpus="= 2")
        found = self.read()
        self.assertEqual(((), ()), (found.groups, found.held))
        self.assertEqual(((),), tuple(each.answers for each in found.capacities))


def render(fleet: Fleet = _FLEET, title: str = "GPUs") -> str:
    return report.render(fleet, title, _WHEN)


def texts(text: str, where: str) -> list[str]:
    return [" ".join(each.itertext()) for each in html.fromstring(text).xpath(where)]


class PageTest(unittest.TestCase):
    def test_it_loads_and_runs_nothing(self) -> None:
        text = render()
        (style,) = html.fromstring(text).xpath("//style/text()")
        self.assertIsNone(re.search(r"url\(|@import|expression|</", style))
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        (policy,) = html.fromstring(text).xpath("//meta[@http-equiv]/@content")
        self.assertTrue(policy.startswith("default-src 'none'"), policy)
        self.assertIn(f"style-src 'sha256-{digest}'", policy)
        self.assertNotIn("unsafe", policy)

    def test_what_it_says(self) -> None:
        text = render()
        tiles = dict(zip(texts(text, "//dt"), texts(text, "//dd"), strict=True))
        self.assertEqual(
            {
                "GPUs in use": "2 of 8",
                "GPUs free": "5",
                "GPUs reserved": "1",
                "hosts": "1",
                "instances with GPUs": "1",
                "projects with GPUs": "1",
            },
            tiles,
        )
        self.assertIn("at 2026-11-22 02:30 UTC", texts(text, "//header/p")[0])
        group = [each.strip() for each in texts(text, "//*[@id='groups']//td")]
        self.assertEqual(
            ["host1", "tesla_m2090 10de:1091, fermi", "lxc", "2", "1", "5", "8"], group[:7]
        )
        widths = html.fromstring(text).xpath("//rect/@width")
        self.assertEqual(["2", "1", "5"], widths)
        self.assertEqual(["p1", "1", "2", "0"], texts(text, "//*[@id='projects']//td"))
        self.assertEqual("first 5f7c", texts(text, "//*[@id='instances']//td")[0])
        could = texts(text, "//*[@id='capacity']//td")
        self.assertEqual(["cg1.xlarge", "2 GPUs", "2", "1"], could[:4])
        self.assertIn("1 host:  2 GPUs asked for, 0 of 8 free", could[4])

    def test_ill_while_in_use_is_drawn_once(self) -> None:
        ill = dataclasses.replace(PROVIDER, group=Group(8, 2, 8, TRAITS))
        widths = html.fromstring(render(Fleet((ill,), (), ()))).xpath("//rect/@width")
        self.assertEqual(["8", "0", "0"], widths)

    def test_nothing_there(self) -> None:
        text = render(Fleet((), (), ()))
        self.assertEqual(["None."] * 4, texts(text, "//section/p[not(@class)]"))
