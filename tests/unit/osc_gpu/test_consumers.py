# SPDX-License-Identifier: Apache-2.0
"""Fleets in a real Placement and pages of servers, read by openstacksdk, its requests counted."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any

from nova_gpu.core import names
from osc_gpu import usage
from tests.fixtures.bases.reading import (
    ReadingTestCase,
    new_uuid,
)


class ConsumersTest(ReadingTestCase):
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
        begun = {"id": 1, "uuid": move, "instance_uuid": moved, "source_compute": "busy"}
        ended = ({"id": n, "uuid": str(n), "source_compute": "quiet"} for n in range(2, 50))
        self.nova.migrations += [begun, *ended]
        remarks = "kept until its move is confirmed or reverted", usage._UNKNOWN
        found = {
            (has, 1, ""),
            (moved, 1, ""),
            *zip((moved, stranger), (1, 1), remarks, strict=True),
        }
        self.assertEqual((found, 1), self.usage())
        self.assertEqual(1, self.asked["/os-migrations"])

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


def server(name: str, status: str, on_stop: str = "", task_state: str | None = None) -> Any:
    specs = {"gpus": "= 4"} | ({"gpu:on_stop": on_stop} if on_stop else {})
    return SimpleNamespace(
        id=name,
        name=name,
        status=status,
        task_state=task_state,
        host_id="host",
        flavor={"extra_specs": specs},
    )


class OwnTest(unittest.TestCase):
    def test_who_gave_them_back_has_none(self) -> None:
        listed = [
            server("runs", "ACTIVE", "release"),
            server("gave", "SHUTOFF", "release"),
            server("keeps", "SHUTOFF", "keep"),
            server("silent", "SHUTOFF"),
            server("misspelt", "SHUTOFF", "relaese"),
            server("starts", "SHUTOFF", "release", "powering-on"),
        ]
        compute = SimpleNamespace(servers=lambda details: listed)
        rows = list(usage._of_project(SimpleNamespace(compute=compute)))
        found = {name: gpus for _, name, _, gpus, *_ in rows}
        self.assertEqual(0, found.pop("gave"))
        self.assertEqual(dict.fromkeys(("runs", "keeps", "silent", "misspelt", "starts"), 4), found)
