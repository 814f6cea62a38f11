# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import unittest
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

from openstack import exceptions as sdk_exc
from osc_lib import exceptions

from osc_gpu_fleet import retries, start

NONE_FREE = (
    "on host1: the instance gave its GPUs back, and gets none now: 1 GPU asked "
    "for, at most 0 free on its host; start it when some are free"
)
GIVES = {"gpus": "1", "gpu:on_stop": "release"}


class _Nova:
    """One server, and what Nova does with it: ``becomes`` by action the status it ends with, of a
    list one after the other, or what is raised. What fails leaves the server as it is."""

    def __init__(
        self,
        becomes: Mapping[str, str | Exception | list[str]],
        status: str = "SHUTOFF",
        specs: Mapping[str, str] = GIVES,
        details: str | None = None,
    ) -> None:
        self.status = status
        self.task_state: str | None = None
        self.working: str | None = None
        self.fault: Mapping[str, str] | None = None
        self.done: list[str] = []
        self._becomes, self._specs, self._details = becomes, specs, details
        self._last: Any = None

    def get_server(self, server_id: str) -> Any:
        flavor = {"extra_specs": dict(self._specs)}
        status, task_state = self.status, self.task_state
        return SimpleNamespace(
            id="uuid",
            name="mine",
            status=status,
            task_state=task_state,
            flavor=flavor,
            fault=self.fault,
        )

    def find_server(self, name_or_id: str) -> Any:
        return self.get_server("uuid")

    def _do(self, action: str) -> None:
        self.done.append(action)
        outcome = self._becomes.get(action, self.status)
        if isinstance(outcome, list):
            outcome = outcome.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        message = "Error" if outcome == self.status else None
        self.status, self.task_state = outcome, self.working
        events = [{"details": self._details}]
        self._last = SimpleNamespace(
            action=action, message=message, start_time=1, request_id="req", events=events
        )

    def start_server(self, server: Any) -> None:
        self._do("start")

    def shelve_server(self, server: Any) -> None:
        self._do("shelve")

    def shelve_offload_server(self, server: Any) -> None:
        self._do("offload")

    def unshelve_server(self, server: Any) -> None:
        self._do("unshelve")

    def server_actions(self, server: Any) -> list[Any]:
        return [self._last] if self._last else []

    def get_server_action(self, request_id: str, server: Any) -> Any:
        return self._last


class StartTest(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 0.0
        self.clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._pass)

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def start(self, nova: _Nova, *options: str) -> str:
        """What it says while it works"""
        app = SimpleNamespace(stderr=io.StringIO())
        made = start.StartServer(app, None)
        parsed = made.get_parser("openstack").parse_args(["mine", *options])
        connection = SimpleNamespace(compute=nova)
        with mock.patch.object(made, "connection", lambda _: connection):
            made.take_action(parsed)
        return app.stderr.getvalue()

    def refused(self, nova: _Nova, *options: str) -> str:
        with self.assertRaises(exceptions.CommandError) as caught:
            self.start(nova, *options)
        return str(caught.exception)

    def test_what_is_shelved_goes_on(self) -> None:
        nova = _Nova({"offload": "SHELVED_OFFLOADED", "unshelve": "ACTIVE"}, "SHELVED", specs={})
        self.start(nova)
        self.assertEqual(["offload", "unshelve"], nova.done)
        nova = _Nova({"unshelve": "ACTIVE"}, "SHELVED_OFFLOADED")
        self.start(nova)
        self.assertEqual(["unshelve"], nova.done)
        self.start(nova)  # and what runs is left
        self.assertEqual(["unshelve"], nova.done)

    def test_what_is_not_allowed(self) -> None:
        """To take it from its host, by default; to have more than quota says"""
        for action, status, why in (
            ("offload", "SHELVED", "Policy doesn't allow it"),
            ("unshelve", "SHELVED_OFFLOADED", "Resource class:PGPU is over limit of 3"),
        ):
            forbidden = sdk_exc.ForbiddenException("403", details=why)
            message = self.refused(_Nova({action: forbidden}, status))
            self.assertIn(f": Nova refused that ({why}); look at", message)
            self.assertIn("run the command again", message)

    def test_no_longer_than_it_was_told(self) -> None:
        nova = _Nova({}, details=NONE_FREE)
        with mock.patch.object(start, "time", self.clock):
            self.assertIn(NONE_FREE, self.refused(nova, "--for", "100", "--every", "30"))
        self.assertEqual(["start"] * 4, nova.done)
        # What is no lack of GPUs is not tried again.
        nova = _Nova({}, details="no such network")
        self.refused(nova, "--for", "100")
        self.assertEqual(["start"], nova.done)

    def test_what_is_neither_stopped_nor_shelved(self) -> None:
        nova = _Nova({}, "ERROR")
        nova.fault = {"message": "No valid host was found."}
        self.assertEqual("mine is ERROR: No valid host was found", self.refused(nova))
        nova = _Nova({"start": "ACTIVE"})
        nova.task_state = "rebuilding"
        self.assertIn("mine is SHUTOFF, busy with rebuilding; look at", self.refused(nova))
        self.assertEqual([], nova.done)
        nova = _Nova({"start": "ACTIVE"})
        nova.working = "powering-on"
        with mock.patch.object(retries, "time", self.clock):
            message = self.refused(nova)
        self.assertIn("Nova is still busy with powering-on after 3600 s; look at", message)
        nova.task_state = None
        self.start(nova)
