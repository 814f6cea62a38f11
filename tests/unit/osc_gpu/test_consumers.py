# SPDX-License-Identifier: Apache-2.0
"""Fleets in a real Placement and pages of servers, read by openstacksdk, its requests counted."""

from __future__ import annotations

import json
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

import requests

from nova_gpu.core import names
from osc_gpu import explain, group_list, host_list, servers, usage
from tests.fixtures.bases.reading import (
    ReadingTestCase,
    new_uuid,
)


class ConsumersTest(ReadingTestCase):
    def usage(self) -> tuple[set[tuple[str, int, str]], int]:
        """Each server, what it has and the remark; and how many providers were asked about"""
        rows = self.run_command(usage.ShowUsage)
        count = self.requests().get("/resource_providers/UUID/allocations", 0)
        return {(row["Server"], row["GPUs"], row["Remark"]) for row in rows}, count

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
        moved, has = (server["id"] for server in self.nova.servers)
        move, stranger = new_uuid(), new_uuid()
        for consumer in (move, stranger):
            self.placement.allocate({group: {names.RESOURCE_CLASS: 1}}, consumer)
        begun = {"id": 1, "uuid": move, "instance_uuid": moved, "source_compute": "busy"}
        ended = ({"id": n, "uuid": str(n), "source_compute": "quiet"} for n in range(2, 50))
        self.nova.migrations += [begun, *ended]
        remarks = "kept until its move is confirmed or reverted", usage._UNKNOWN
        expected = {
            (has, 1, ""),
            (moved, 1, ""),
            *zip((moved, stranger), (1, 1), remarks, strict=True),
        }
        self.assertEqual((expected, 1), self.usage())
        self.assertEqual(1, self.request_counts["/os-migrations"])

    def test_servers_of_a_cell_that_does_not_answer(self) -> None:
        """Of those the API has uuids and projects (Nova's api-guide, "Handling Down Cells")."""
        self.add_host("host", self.firm, 2)
        self.nova.servers = [
            {"id": server["id"], "tenant_id": "p1", "status": "UNKNOWN", "links": []}
            for server in self.nova.servers
        ]
        expected = {(server["id"], 1, "") for server in self.nova.servers}
        self.assertEqual((expected, 1), self.usage())

    def test_which_of_a_hosts_products(self) -> None:
        node = self.placement.add_host("host")
        self.nova.add_node(node, "host")
        old = self.placement.add_group(node, 2, "fermi")
        new = self.placement.add_group(node, 2, "kepler", product_id="1028")
        for architecture, group in (("fermi", old), ("kepler", new)):
            flavor = self.nova.add_flavor(architecture, gpus="= 1", gpu_arch=f"s== {architecture}")
            self.add_server("host", node, group, flavor)
        rows = self.run_command(usage.ShowUsage)
        self.assertEqual(0, self.request_counts["/resource_providers/UUID/allocations"])
        self.assertEqual(["fermi", "kepler"], sorted(row["Architecture"] for row in rows))
        # A flavor that any would do for says of none which it has.
        last = self.add_server("host", node, new, self.firm)
        rows = self.run_command(usage.ShowUsage)
        (has,) = (row for row in rows if row["Server"] == last)
        self.assertEqual("kepler", has["Architecture"])
        self.assertEqual(1, self.request_counts["/resource_providers/UUID/allocations"])


class SilentHostTest(ReadingTestCase):
    def test_it_costs_its_own_answer_alone(self) -> None:
        flavor = self.nova.add_flavor("cells", **{"gpus": "= 1", "hw:numa_nodes": "1"})
        self.add_host("host", flavor, 1)
        (server,) = self.nova.servers
        send = self.nova.send

        def hang(request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> Any:
            if str(request.url).endswith("/diagnostics"):
                raise requests.ReadTimeout
            return send(request, *args, **kwargs)

        with mock.patch.object(self.nova, "send", hang):
            for command, field, others in (
                (servers.ShowServer, "cards", {"host": "host", "gpus": 1}),
                (explain.ExplainServer, "why", {"host": "host"}),
            ):
                status, printed, errors = self.shown(command, server["id"], "-f", "json")
                self.assertEqual(0, status, errors)
                shown = json.loads(printed)
                self.assertIn("did not answer GET within 60 s", str(shown[field]))
                self.assertLessEqual(others.items(), shown.items())

    def test_a_user_who_may_read_all_but_diagnostics(self) -> None:
        self.add_host("host", self.firm, 1)
        (server,) = self.nova.servers
        send = self.nova.send

        def refuse(request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> Any:
            answer = send(request, *args, **kwargs)
            if str(request.url).endswith("/diagnostics"):
                answer.status_code = 403
            return answer

        with mock.patch.object(self.nova, "send", refuse):
            for command, field, other in (
                (servers.ShowServer, "cards", "groups"),
                (explain.ExplainServer, "why", "hosts"),
            ):
                status, printed, errors = self.shown(command, server["id"], "-f", "json")
                self.assertEqual(0, status, errors)
                shown = json.loads(printed)
                self.assertIn("unknown: Nova refused", str(shown[field]))
                self.assertIn("host", str(shown[other]))


class ReservedTest(ReadingTestCase):
    def test_without_a_request_for_each_group(self) -> None:
        """But for hosts with an older nova-gpu, where a later one may have left its trait."""
        for name, older in (("host", False), ("older", True), ("left", True)):
            node = self.placement.add_host(name)
            group = self.placement.add_group(node, 4, reserved=1, used=1, older=older)
            self.nova.add_node(node, name)
        self.placement.mark(group, f"{names.TRAIT_TOTAL}2")
        for command in (group_list.ListGroups, host_list.ListHosts):
            counts = {
                tuple(row[name] for name in ("Total", "Used", "Reserved", "Free"))
                for row in self.run_command(command)
            }
            self.assertEqual({(4, 1, 1, 2)}, counts)
            self.assertEqual(2, self.request_counts["/resource_providers/UUID/inventories"])


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
        counts = {name: gpus for _, name, _, gpus, *_ in rows}
        self.assertEqual(0, counts.pop("gave"))
        self.assertEqual(
            dict.fromkeys(("runs", "keeps", "silent", "misspelt", "starts"), 4), counts
        )
