# SPDX-License-Identifier: Apache-2.0
"""Which requests wait for a host; tests.functional.test_preemption has real ones."""

from __future__ import annotations

import datetime
import unittest
from types import SimpleNamespace
from typing import Any

from openstack import exceptions as sdk_exc
from openstack.compute.v2.server import Server

from nova_gpu.core import exception
from osc_gpu_fleet import unserved

QUOTA = (
    "No valid host was found. Scheduling failed: quota refuses the instance its GPUs: quota of "
    "class:PGPU is 3, 3 in use, and 1 more asked for"
)
FAULT = "No valid host was found. Scheduling failed: no host can give the GPUs asked for now"


def server(name: str, minute: int, **more: Any) -> Server:
    """One that found no host, unless *more* says something else"""
    specs = more.pop("specs", {"gpus": "2"})
    fields: dict[str, Any] = {
        "id": f"{name}{minute}",
        "name": name,
        "status": "ERROR",
        "compute_host": None,
        "created_at": f"2026-11-24T15:{minute:02}:00Z",
        "project_id": "p1",
        "fault": {"message": FAULT},
        "availability_zone": "",
        "image": {"id": "i1"},
        "flavor": {"original_name": more.pop("flavor", "two"), "extra_specs": specs},
    }
    return Server(**fields | more)


def started(name: str, minute: int, **more: Any) -> Server:
    return server(name, minute, status="ACTIVE", compute_host="host1", fault=None, **more)


class UnservedTest(unittest.TestCase):
    def setUp(self) -> None:
        self.holders: set[str] = set()
        self.actions: list[Any] = []
        self.events: list[Any] = []
        self.alone: dict[str, Server] = {}

    def get_server(self, uuid: str) -> Server:
        if uuid not in self.alone:
            raise sdk_exc.NotFoundException(uuid)
        return self.alone[uuid]

    def read(self, *servers: Any) -> list[list[str]]:
        compute = SimpleNamespace(
            servers=lambda **options: list(servers),
            get_server=self.get_server,
            server_actions=lambda uuid: self.actions,
            get_server_action=lambda request, uuid: SimpleNamespace(events=self.events),
        )
        since = datetime.datetime(2026, 11, 24, 15, 0)
        groups = unserved.read(SimpleNamespace(compute=compute), since, lambda: self.holders)
        return [[server.id for server in group.servers] for group in groups]

    def test_others_were_first(self) -> None:
        lost = {"message": "No valid host was found. There are not enough hosts available."}
        self.assertEqual([["a1"]], self.read(server("a", 1, fault=lost)))

    def test_the_list_has_no_fault(self) -> None:
        """As of Nova 2024.1 to 2025.1, where a server alone has it"""
        listed = server("a", 1, fault=None), server("b", 2, fault=None), server("c", 3, fault=None)
        self.alone = {listed[0].id: server("a", 1), listed[1].id: listed[1]}
        self.assertEqual([["a1"]], self.read(*listed))  # c is gone meanwhile

    def test_zones_and_volumes_apart(self) -> None:
        """The oldest first"""
        groups = self.read(
            server("d", 5, project_id="p2"),
            server("c", 3, image=None),
            server("b", 2, availability_zone="z"),
            server("e", 4, flavor="one", specs={"gpus": "1"}),
            server("a", 1),
        )
        self.assertEqual([["a1", "d5"], ["b2"], ["c3"], ["e4"]], groups)

    def test_who_is_none(self) -> None:
        for other in (
            started("a", 1),
            server("a", 1, compute_host="host1"),
            server("a", 1, fault={"message": "Exceeded maximum number of retries"}),
            server("a", 1, fault={"message": QUOTA}),
            server("a", 1, fault=None),
            server("a", 1, status="BUILD"),
            server("a", 1, created_at="2026-11-24T14:59:59Z"),
            server("a", 1, specs={}),
            server("a", 1, specs={"gpus": "1", "gpu:preemptible": "0s"}),
            server("a", 1, specs={"gpus": "1", "gpu:preemptible": "misspelt"}),
            server("a", 1, specs={"gpus": "misspelt"}),
        ):
            with self.subTest(other=other):
                self.assertEqual([], self.read(other))

    def test_the_scheduler_has_chosen_a_host(self) -> None:
        """Nova shows that only when the host has begun."""
        built = server("b", 3, status="BUILD")
        self.assertEqual([["a2"]], self.read(server("a", 2), built))
        self.holders = {built.id}
        self.assertEqual([], self.read(server("a", 2), built))

    def test_starts_and_unshelves(self) -> None:
        """Of servers that are there, and have no GPUs"""

        def did(action: str, minute: int, message: str | None = None) -> Any:
            time = f"2026-11-24T15:{minute:02}:00.000000"
            return SimpleNamespace(
                action=action, start_time=time, message=message, request_id="req"
            )

        def there(status: str, **more: Any) -> Server:
            old = {"created_at": "2026-11-20T15:00:00Z", "updated_at": "2026-11-24T15:09:00Z"}
            fields = {"status": status, "hypervisor_hostname": "node1", "fault": None}
            return server("a", 1, **old | fields | more)

        stopped, shelved = there("SHUTOFF"), there("SHELVED_OFFLOADED")
        start, unshelve = did("start", 9, "Error"), did("unshelve", 9)
        gave_back = [{"details": f"on host1: {exception.GAVE_BACK}, and gets none now"}]
        busy = there("SHUTOFF", task_state="powering-on")
        long_ago = there("SHUTOFF", updated_at="2026-11-24T14:09:00Z")
        spot = there("SHUTOFF", specs={"gpus": "1", "gpu:preemptible": "0s"})
        for own_server, action, events, groups in (
            (stopped, start, gave_back, [["a1"]]),
            (stopped, start, [{"details": "no such network"}], []),
            (stopped, did("stop", 10), gave_back, []),  # its user wants it no more
            (busy, start, gave_back, []),
            (long_ago, start, gave_back, []),
            (spot, start, gave_back, []),
            (shelved, unshelve, [], [["a1"]]),
            (shelved, did("shelveOffload", 10), [], []),
        ):
            with self.subTest(status=own_server.status, action=action.action, events=events):
                self.actions, self.events = [action, did("create", 0)], events
                self.assertEqual(groups, self.read(own_server))

    def test_who_was_served_since(self) -> None:
        for newer, left in (
            ((started("b", 3),), []),
            ((started("b", 1),), ["a2"]),  # it is older
            ((started("b", 3, project_id="p2"),), ["a2"]),
            ((started("b", 3, flavor="other"),), ["a2"]),
            ((server("b", 3, status="BUILD"),), ["a2"]),  # not known yet
            ((server("a", 3, status="BUILD"),), ["a2"]),
            ((server("a", 3, status="BUILD", compute_host="host1"),), []),
            # Asked for twice it is wanted once.
            ((server("a", 4),), ["a4"]),
            ((server("a", 4), started("a", 5)), []),
            ((server("b", 4), started("c", 5)), ["a2"]),
            ((server("b", 3), server("c", 4)), ["a2", "b3", "c4"]),
        ):
            with self.subTest(newer=newer):
                groups = self.read(server("a", 2), *newer)
                self.assertEqual([left] if left else [], groups)
