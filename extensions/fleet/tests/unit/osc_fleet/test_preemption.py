# SPDX-License-Identifier: Apache-2.0
"""What is read of a fleet before instances are chosen, its requests counted."""

from __future__ import annotations

import contextlib
import os
import pathlib
from typing import ClassVar
from unittest import mock

import fixtures
from osc_lib import exceptions

from nova_gpu.core import names
from osc_gpu import capacity, explain, flavor_check, group_list, host_list, projects, usage
from osc_gpu_fleet import move_commands, preemption, report
from tests.fixtures.bases import reading

# A full cloud in as many pages as 2,000 hosts and 16,000 servers are ([api]max_limit=1000), and how
# many requests there are next to these. With all of the hosts each command takes minutes, in which
# openstacksdk makes its servers.
_HOSTS, _PAGES, _MOST = int(os.environ.get("NOVA_GPU_FLEET_HOSTS", 20)), 2, 13


class ReadingTestCase(reading.ReadingTestCase):
    SPOT: ClassVar = {"gpus": "= 1", "gpu:preemptible": "60s", "gpu:on_stop": "release"}


class PreemptTest(ReadingTestCase):
    def test_what_an_image_asks_for_is_read(self) -> None:
        """Dedicated processors are other resources than the flavor's."""
        node = self.placement.add_host("host", vcpus=8)
        self.nova.add_node(node, "host")
        group = self.placement.add_group(node, 1)
        uuid = reading.new_uuid()
        self.nova.add_server(uuid, "host", self.spot)
        self.placement.allocate({node: {"MEMORY_MB": 512}, group: {names.RESOURCE_CLASS: 1}}, uuid)
        self.run_command(preemption.Preempt, "one", "--project", "p1")
        self.assertEqual(1, self.request_counts["/resource_providers/UUID/allocations"])

    def test_names_of_projects(self) -> None:
        self.add_host("host", self.spot, 1, total=1)
        with mock.patch.object(projects, "names", return_value={"p1": "research"}):
            for form, project in ("table", "research"), ("json", "p1"):
                _, printed, _ = self.shown(preemption.Preempt, "one", "--project", "p1", "-f", form)
                self.assertRegex(printed, rf"\b{project}\b")


class WhyNoMovesTest(ReadingTestCase):
    def test_too_few_free_gpus_are_no_fault_of_flavors(self) -> None:
        for name in ("a", "b"):
            self.add_host(name, self.firm, 3, total=4)
        for server in self.nova.servers:
            server["name"] = "x\ny"
        stays = "x y stays: it runs, and its flavor does not say gpu:move cold"
        for arguments, lines in (
            (
                (move_commands.MakeRoom, "two"),
                [
                    "no moves make room for 1 of two; there is room for 0 now",
                    *[f"  {stays}"] * 5,
                    "  and 1 more",
                    f"  {move_commands._OWN_COPY}",
                ],
            ),
            (
                (move_commands.MakeRoom, "two", "--count", "2"),
                [
                    "no moves make room for 2 of two; there is room for 0 now",
                    "  not enough GPUs are free: 4 needed, 2 free in all hosts that are up",
                ],
            ),
            (
                (move_commands.Drain, "a"),
                [
                    "no moves empty a",
                    "  not enough GPUs are free: 3 needed, 1 free in all other hosts that are up",
                ],
            ),
        ):
            refused = self.assertRaises(exceptions.CommandError, self.shown, *arguments)
            self.assertEqual(lines, str(refused).splitlines(), arguments)


class DownCellTest(ReadingTestCase):
    def test_what_it_has_is_left_alone(self) -> None:
        """Of its servers Nova shows no more than uuids and projects, and nothing of moves."""
        group = self.add_host("host", self.spot, 2)
        self.placement.allocate({group: {names.RESOURCE_CLASS: 1}})
        for server in self.nova.servers:
            known = {name: server[name] for name in ("id", "tenant_id")}
            server.clear()
            server.update({**known, "status": "UNKNOWN", "links": []})
        rows = self.run_command(usage.ShowUsage)
        self.assertEqual(["other", "p1", "p1"], sorted(row["Project"] for row in rows))
        for command, *arguments in (
            (preemption.Preempt, "two", "--project", "p1"),
            (preemption.Preempt, "--project", "p1"),
            (move_commands.MakeRoom, "two"),
            (move_commands.Drain, "host"),
            (move_commands.Defragment, "--flavor", "two"),
        ):
            with contextlib.suppress(exceptions.CommandError):  # none of them may move
                self.shown(command, *arguments)


class LargeCloudTest(ReadingTestCase):
    """Hosts whose GPUs are all used, by eight servers each"""

    PAGE = _HOSTS // _PAGES

    def setUp(self) -> None:
        super().setUp()
        self.add_host("host0", self.spot, 8, total=8)
        names = [f"host{number}" for number in range(1, _HOSTS)]
        for name, (node, uuids) in zip(
            names, self.placement.copy_host("host0", names), strict=True
        ):
            self.nova.add_node(node, name)
            for uuid in uuids:
                self.nova.add_server(uuid, name, self.spot)

    def test_a_request_for_each_page(self) -> None:
        page = str(pathlib.Path(self.useFixture(fixtures.TempDir()).path, "page.html"))
        for command, *arguments in (
            (usage.ShowUsage,),
            (host_list.ListHosts,),
            (group_list.ListGroups,),
            (report.WriteReport, "--html", page),
            (capacity.ShowCapacity, "two"),
            (explain.ExplainServer, self.nova.servers[0]["id"]),
            (flavor_check.CheckFlavor,),
            (preemption.Preempt, "two", "--project", "p1"),
            (preemption.Preempt, "--project", "p1"),
            (move_commands.MakeRoom, "two"),
            (move_commands.Drain, "host7"),
            (move_commands.Defragment, "--flavor", "two"),
        ):
            with contextlib.suppress(exceptions.CommandError):  # none of its instances may move
                self.shown(command, *arguments)
            self.assertLessEqual(sum(self.requests().values()), _MOST, self.request_counts)
