# SPDX-License-Identifier: Apache-2.0
"""Who may be a victim, and what it was told; tests.functional.test_preemption has real ones."""

from __future__ import annotations

import datetime
import unittest
from types import SimpleNamespace
from typing import Any

import requests
from openstack.compute.v2.server import Server
from osc_lib import exceptions
from oslo_utils import timeutils

from nova_gpu_fleet.core.preemptible import End
from osc_gpu_fleet import preemption_candidates
from osc_gpu_fleet.planning.fleet import Fleet
from osc_gpu_fleet.preemption_candidates import Candidate, Candidates
from tests.unit.osc_fleet import fleets
from tests.unit.osc_fleet.fleets import host, instance, need

NOW = datetime.datetime(2026, 11, 24, 15, 0)
NOTICE_S = 600
STOPPED = {"gpus": "2", "gpu:preemptible": "1h", "gpu:on_stop": "release"}
DELETED = {"gpus": "2", "gpu:preemptible": "1h", "gpu:on_preempt": "delete"}


def at(minutes: int) -> datetime.datetime:
    """So many minutes from now"""
    return NOW + datetime.timedelta(minutes=minutes)


def server(uuid: str = "a", **more: Any) -> Server:
    """One that may be a victim, unless *more* says something else"""
    fields: dict[str, Any] = {
        "id": uuid,
        "name": uuid,
        "status": "ACTIVE",
        "compute_host": "host1",
        "is_locked": False,
        "project_id": "p1",
        "launched_at": at(-60).isoformat(),
        "metadata": {},
        "flavor": {"original_name": "spot", "extra_specs": more.pop("specs", STOPPED)},
    }
    return Server(**fields | more)


class Nova:
    """Answers with *servers*, and with when they were started again."""

    def __init__(self, *servers: Server, started: tuple[int, ...] = ()) -> None:
        self.listed = {server.id: server for server in servers}
        self.started = started
        self.calls: list[tuple[str, str]] = []

    def servers(self, **options: Any) -> list[Server]:
        return list(self.listed.values())

    def get_server(self, uuid: str) -> Server:
        return self.listed[uuid]

    def server_actions(self, uuid: str) -> list[Any]:
        created = SimpleNamespace(action="create", start_time=at(0).isoformat())
        starts = (at(minutes).isoformat() for minutes in self.started)
        return [created, *(SimpleNamespace(action="start", start_time=moment) for moment in starts)]

    def get(self, url: str, **options: Any) -> requests.Response:
        answer = requests.Response()
        answer.status_code = 200
        answer._content = b'{"hypervisors": [{"hypervisor_hostname": "host1", "state": "up"}]}'
        return answer

    def set_server_metadata(self, uuid: str, **metadata: str) -> None:
        self.calls.append(("told", uuid))

    def stop_server(self, server: Server) -> None:
        self.calls.append(("stop", server.id))


class PreemptibleTest(unittest.TestCase):
    def setUp(self) -> None:
        timeutils.set_time_override(NOW)
        self.addCleanup(timeutils.clear_time_override)
        self.notices: dict[str, datetime.datetime] = {}

    def read(self, *servers: Server, started: tuple[int, ...] = (), **more: Any) -> Candidates:
        return preemption_candidates.read(
            SimpleNamespace(compute=Nova(*servers, started=started)),
            self.fleet(*servers),
            {"p1"},
            self.notices,
            NOTICE_S,
            more.get("barred", {}),
        )

    def verified(self, server: Server, started: tuple[int, ...]) -> Candidates:
        candidates = self.read(server, started=started)
        nova = SimpleNamespace(compute=Nova(server, started=started))
        return preemption_candidates.verified(nova, candidates, candidates.by_uuid)

    def fleet(self, *servers: Server) -> Fleet:
        """Two GPUs and a processor of each, on one host"""
        there = [instance(server.id, "host1", need(2, vcpus=1)) for server in servers]
        return fleets.fleet([host("host1", (2 * len(there), 0), vcpus=len(there))], there)

    def due(self, text: str, **more: Any) -> datetime.datetime | None:
        """When its GPUs are taken, by what its metadata say"""
        candidates = self.read(server(metadata={"gpu:preempt_at": text}), **more)
        return candidates.by_uuid["a"].due

    def test_not_before_its_least_time(self) -> None:
        just = (NOW - datetime.timedelta(seconds=3599)).isoformat()
        for own_server, started in (
            (server(launched_at=just), ()),
            (server(launched_at=at(-600).isoformat()), (-300, -59)),
        ):
            candidates = self.verified(own_server, started=started)
            self.assertEqual({}, candidates.by_uuid)
            self.assertRegex(
                candidates.stays[0], "^a stays: it has had its GPUs for 35[49][09] s, and"
            )
        self.assertTrue(self.verified(server(), started=(-300, -60)).by_uuid)

    def test_a_start_that_gives_it_none(self) -> None:
        """It has kept its GPUs, and a notice holds, too."""
        hour = {"gpu:preemptible": "1h"}
        own_server = server(specs=DELETED | hour, launched_at=at(-3700).isoformat())
        self.assertTrue(self.verified(own_server, started=(-30,)).by_uuid)
        self.notices["a"] = at(5)
        own_server = server(launched_at=at(-5).isoformat(), specs=STOPPED | hour)
        self.assertEqual(at(5), self.read(own_server, started=(-3,)).by_uuid["a"].due)

    def test_who_may_not(self) -> None:
        for own_server, reason in (
            (server(project_id="p2"), "its project"),
            (server(is_locked=True), "it is locked"),
            (server(task_state="rebooting"), "it is busy: rebooting"),
            (server(status="PAUSED"), "its status is PAUSED"),
            (server(specs=STOPPED | {"gpus": "3"}), "it does not have what its flavor asks for"),
            (server(specs=STOPPED | {"gpu:preemptible": "soon"}), "its flavor cannot be used"),
            (server(specs=STOPPED | {"gpu:on_stop": "keep"}), "its flavor cannot be used"),
        ):
            with self.subTest(reason=reason):
                candidates = self.read(own_server)
                self.assertEqual(({}, ()), (dict(candidates.by_uuid), candidates.leaving))
                (text,) = candidates.stays
                self.assertTrue(text.startswith(f"a stays: {reason}"), text)
        self.assertEqual(("a stays: x",), self.read(server(), barred={"a": "x"}).stays)
        self.assertEqual(Candidates({}, (), ()), self.read(server(specs={"gpus": "2"})))

    def test_who_leaves_is_gone(self) -> None:
        """Nobody goes in its place where a run ended in the midst."""
        for own_server, processors in (
            (server(task_state="powering-off"), 0),
            (server(status="SHUTOFF"), 0),
            (server(specs=DELETED, task_state="deleting"), 1),
        ):
            candidates = self.read(own_server)
            self.assertEqual(({}, ()), (dict(candidates.by_uuid), candidates.stays))
            (freed,) = candidates.freed(self.fleet(own_server)).hosts
            self.assertEqual((0, processors), (freed.groups[0].used, freed.free["VCPU"]))
        # Stopped it keeps them, and costs least.
        candidates = self.read(server(specs=DELETED, status="SHUTOFF"), server("b", specs=DELETED))
        self.assertEqual([("a", 1), ("b", 3)], sorted(candidates.costs.items()))

    def test_what_was_told(self) -> None:
        self.assertEqual(at(5), self.due("2026-11-24T15:05:00Z"))
        self.assertEqual(at(-9), self.due("2026-11-24T14:51:00Z"))
        # Long ago, before it was started again, by somebody else
        self.assertIsNone(self.due("2026-11-24T14:49:00Z"))
        self.notices["a"] = at(-61)
        self.assertIsNone(self.due("2026-11-24T13:59:00Z"))
        self.notices.clear()
        for text in (
            *("soon", "", "2026-11-24T15:05:00", "2026-11-24T15:05:00+00:00"),
            *("9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00", "0000-00-00T00:00:00Z"),
            *("2026-11-24T15:05:00Z\n", "\u0662026-11-24T15:05:00Z"),
        ):
            self.assertIsNone(self.due(text))
        self.assertEqual(at(10), self.due("2099-01-01T00:00:00Z"))
        # What this run has said holds, whatever users write there.
        self.notices["a"] = at(3)
        self.assertEqual(at(3), self.due("2099-01-01T00:00:00Z"))
        self.assertEqual(at(3), self.read(server()).by_uuid["a"].due)

    def test_whose_time_is_over_and_who_lost_least_come_first(self) -> None:
        self.notices["c"] = at(5)
        candidates = self.read(
            server("a", launched_at=at(-90).isoformat()),
            server("b", launched_at=at(-70).isoformat()),
            server("c", launched_at=at(-99).isoformat()),
            server("d", launched_at=at(-99).isoformat(), specs=DELETED),
        )
        self.assertEqual([("c", 0), ("b", 2), ("a", 2), ("d", 3)], list(candidates.costs.items()))


class EndTest(unittest.TestCase):
    def candidate(self, end: End) -> Candidate:
        there = instance("a", "host1", need(2))
        return Candidate(server(), there, end, at(-60), at(0))

    def test_not_when_it_is_another_by_now(self) -> None:
        for change in (
            {"status": "SHUTOFF"},
            {"task_state": "rebuilding"},
            {"compute_host": "host2"},
            {"launched_at": at(-1).isoformat()},
            {"is_locked": True},
        ):
            nova = Nova(server(**change))
            with self.assertRaisesRegex(exceptions.CommandError, "it has changed since the plan"):
                preemption_candidates.end(
                    SimpleNamespace(compute=nova), self.candidate(End.STOP), "s1"
                )
            self.assertEqual([], nova.calls)
