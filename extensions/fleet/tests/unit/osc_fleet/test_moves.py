# SPDX-License-Identifier: Apache-2.0
"""What Nova may answer while a move is followed; tests.functional.test_room has real moves."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from osc_gpu_fleet import moves
from osc_gpu_fleet.planning.fleet import Instance, Move, Need, Spot, Way

UUID = "67c6091b-92d6-4ef4-b8b3-194ffd7b12dc"


class Nova:
    """Answers with one server, which *happens* changes when a move is asked for."""

    def __init__(self, **happens: str | None) -> None:
        self.server = SimpleNamespace(
            id=UUID, status="ACTIVE", compute_host="service1", task_state=None
        )
        self.happens = happens
        self.calls: list[tuple[str, str]] = []
        self.held: dict[str, Any] = {}
        self.looks_until_confirmed = 0
        self.actions: list[Any] = []

    def get_server(self, uuid: str) -> Any:
        if self.looks_until_confirmed:
            self.looks_until_confirmed -= 1
            if not self.looks_until_confirmed:
                self.server.status = "ACTIVE"
        return self.server

    def live_migrate_server(self, server: Any, host: str) -> None:
        self.calls.append((server.id, host))
        vars(self.server).update(self.happens)

    def confirm_server_resize(self, server: Any) -> None:
        """Nova's API takes note of it; the compute host does it later."""
        self.looks_until_confirmed = 3

    def migrations(self, server_id: str) -> list[Any]:
        made = [(1, "old"), (3, "newest"), (2, "older")]
        return [SimpleNamespace(created_at=str(when), uuid=uuid) for when, uuid in made]

    def server_actions(self, server: Any) -> list[Any]:
        return self.actions

    def get_server_action(self, request_id: str, server: Any) -> Any:
        return SimpleNamespace(events=[{"details": f"said of {request_id}"}])


class Left(Nova):
    """With a server that waits for the confirmation of a move that *user* began"""

    def __init__(self, user: str, specs: dict[str, str]) -> None:
        super().__init__()
        flavor = {"extra_specs": specs}
        vars(self.server).update(name="first", status="VERIFY_RESIZE", flavor=flavor)
        self.user = user

    def migrations(self, **filters: str) -> list[Any]:
        if "server_id" not in filters:
            assert filters["status"] == "finished" and filters["migration_type"] == "migration"
        made = {"server_id": UUID, "user_id": self.user, "source_node": "node1"}
        return [SimpleNamespace(**made, created_at="1", uuid="newest")]

    def servers(self, **filters: Any) -> list[Any]:
        assert filters["status"] == "VERIFY_RESIZE"
        return [self.server]


class MovesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.lines: list[str] = []
        for name, value in (("retries.POLL_S", 0.0), ("rest.placement", self.allocations)):
            patch = mock.patch(f"osc_gpu_fleet.moves.{name}", value)
            patch.start()
            self.addCleanup(patch.stop)

    def allocations(self, connection: Any, url: str) -> Any:
        self.assertEqual("/allocations/newest", url)
        return {"allocations": connection.compute.held}

    def make(self, nova: Nova) -> None:
        instance = Instance(UUID, "first", "node1", Need(()), ((0, 1),), Way.LIVE)
        move = Move(instance, "node1", "node2", Spot(1, ((0, 1),)), "frees 1 of node1")
        services = {"node1": "service1", "node2": "service2"}
        connection = SimpleNamespace(compute=nova)
        moves.make(connection, [move], services, self.lines.append, 0.0)

    def test_what_an_earlier_run_left(self) -> None:
        """A cold migration of one's own is confirmed; none of others, nor what has no GPUs."""
        for user, specs, is_confirmed in (
            ("me", {"gpus": "= 1"}, True),
            ("another", {"gpus": "= 1"}, False),
            ("me", {}, False),
        ):
            nova = Left(user, specs)
            session = SimpleNamespace(get_user_id=lambda: "me")
            connection = SimpleNamespace(compute=nova, session=session)
            with mock.patch.object(moves.retries, "POLL_S", 0.0):
                moves.finish(connection, self.lines.append, 60)
            self.assertEqual("ACTIVE" if is_confirmed else "VERIFY_RESIZE", nova.server.status)
        self.assertEqual(
            [f"first ({UUID}): confirmed, as its earlier move waits for that"], self.lines
        )

    def stopped(self, nova: Nova) -> str:
        with self.assertRaises(moves.Stopped) as caught:
            self.make(nova)
        self.assertIn(f"step 1 of 1, first ({UUID}): ", str(caught.exception))
        self.assertIn("No step is made, and none after it is begun", str(caught.exception))
        return str(caught.exception)

    def test_why_it_stayed(self) -> None:
        nova = Nova()
        nova.actions = [
            SimpleNamespace(request_id=f"req-{n}", start_time=str(n), message="Error")
            for n in (1, 2)
        ]
        self.assertIn("it is ACTIVE on service1: said of req-2", self.stopped(nova))

    def test_the_source_keeps_its_gpus(self) -> None:
        nova = Nova(compute_host="service2")
        nova.held = {"provider": {}}
        self.assertIn(
            "node1 keeps its GPUs in Placement for the migration newest", self.stopped(nova)
        )

    def test_it_was_not_where_the_plan_had_it(self) -> None:
        for change in ({"compute_host": "service3"}, {"status": "SHUTOFF"}, {"task_state": "x"}):
            nova = Nova()
            vars(nova.server).update(change)
            self.assertIn("it has changed since the plan", self.stopped(nova))
            self.assertEqual([], nova.calls)
