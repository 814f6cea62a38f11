# SPDX-License-Identifier: Apache-2.0
"""A create that waits; tests.functional.test_preemption has one that is served."""

from __future__ import annotations

import argparse
import io
import unittest
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

from openstack import exceptions as sdk_exc
from openstack.compute.v2.server import Server
from osc_lib import exceptions

from nova_gpu.core import exception
from osc_gpu_fleet import create, retries

NONE = "No valid host was found. Scheduling failed: 1 GPU asked for, 0 of 8 free"


class _Nova:
    """One server after the other, each of which becomes what is said of it. Of more than *quota*
    at once there are none."""

    def __init__(self, *becomes: str, quota: int = 2) -> None:
        self.becomes, self.quota = list(becomes), quota
        self.there: dict[str, Server] = {}
        self.made = 0

    def create(self) -> str:
        if len(self.there) >= self.quota:
            raise sdk_exc.ForbiddenException("Quota exceeded for instances")
        self.made += 1
        outcome = self.becomes.pop(0)
        status = outcome if outcome in ("ACTIVE", "BUILD") else "ERROR"
        fault = {"message": outcome} if status == "ERROR" else None
        uuid = f"s{self.made}"
        self.there[uuid] = Server(
            id=uuid,
            name="mine",
            status=status,
            fault=fault,
            flavor={"name": "large"},
            created_at=f"2026-11-26T12:00:{self.made:02}Z",
        )
        return uuid

    def servers(self, details: bool, status: str) -> list[Server]:
        return [server for server in self.there.values() if server.status == status]

    def get_server(self, uuid: str) -> Server:
        return self.there[uuid]

    def delete_server(self, server: Server) -> None:
        self.there.pop(server.id, None)  # as openstacksdk: it need not be there

    def wait_for_delete(self, server: Server, interval: float) -> None:
        pass


class CreateTest(unittest.TestCase):
    def setUp(self) -> None:
        self.slept: list[float] = []
        self.stderr = io.StringIO()

    def run_it(self, nova: _Nova, *arguments: str) -> tuple[Any, str]:
        class Plain:
            def __init__(self, app: Any, app_args: Any) -> None:
                pass

            def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
                parser = argparse.ArgumentParser(prog_name)
                parser.add_argument("--min", type=int)
                parser.add_argument("--max", type=int)
                return parser

            def take_action(self, parsed_args: Any) -> tuple[Sequence[str], Sequence[str]]:
                return ("id",), (nova.create(),)

        app = SimpleNamespace(
            command_manager=SimpleNamespace(find_command=lambda words: (Plain, "", [])),
            client_manager=SimpleNamespace(sdk_connection=SimpleNamespace(compute=nova)),
            stderr=self.stderr,
        )
        made = create.CreateServer(app, None)
        parsed = made.get_parser("openstack").parse_args(list(arguments))
        now = 0.0

        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds
            self.slept.append(seconds)

        clock = SimpleNamespace(monotonic=lambda: now, sleep=sleep)
        with (
            mock.patch.object(create, "time", clock),
            mock.patch.object(retries, "time", clock),
            mock.patch.object(made, "connection", lambda parsed: app.client_manager.sdk_connection),
        ):
            _, values = made.take_action(parsed)
        return values, app.stderr.getvalue()

    def refusal(self, nova: _Nova, *arguments: str) -> str:
        with self.assertRaises(exceptions.CommandError) as refused:
            self.run_it(nova, *arguments)
        return str(refused.exception)

    def test_who_is_replaced(self) -> None:
        """What a run that was killed has left; no other server of that name"""
        for change, is_replaced in (
            ({}, True),
            ({"name": "other"}, False),
            ({"flavor": {"name": "small"}}, False),
            ({"created_at": "2026-11-26T13:00:00Z"}, False),  # of another run, meanwhile
            ({"fault": {"message": "Image is gone"}}, False),
        ):
            nova = _Nova(NONE, "ACTIVE")
            nova.create()
            nova.there["s1"]._update(**change)
            self.run_it(nova)
            self.assertEqual({"s2"} if is_replaced else {"s1", "s2"}, set(nova.there), change)

    def test_no_longer_than_it_was_told(self) -> None:
        nova = _Nova(*[NONE] * 9)
        message = self.refusal(nova, "--for", "100", "--every", "30")
        self.assertEqual(
            f"mine (s4) found no host in 100 s and stays in ERROR: {NONE}\n"
            "  delete it (openstack server delete s4), or try again later or with a longer --for: "
            "the next server of its name and flavor replaces it",
            message,
        )
        self.assertEqual({"s4"}, set(nova.there))
        self.assertIn(
            "mine (s1) is still being built after 3600 s; see openstack server event list s1",
            self.refusal(_Nova("BUILD")),
        )

    def test_what_is_no_lack_of_gpus(self) -> None:
        nova = _Nova(NONE, "Image is gone")
        self.assertEqual("mine (s2): Image is gone", self.refusal(nova))
        self.assertEqual({"s2"}, set(nova.there))
        for option in ("--min", "--max"):
            self.assertIn(f"{option} is not possible", self.refusal(nova, option, "2"))
        never = NONE.replace("failed: ", f"failed: {exception.FINAL}")
        self.assertEqual(f"mine (s1): {never}", self.refusal(_Nova(never)))
        self.assertEqual([], self.slept[1:])
        nova = _Nova("ACTIVE", quota=0)
        self.assertEqual("Nova: Quota exceeded for instances", self.refusal(nova))

    def test_interrupted(self) -> None:
        """What is left is said."""

        class Interrupted(_Nova):
            def servers(self, details: bool, status: str) -> list[Server]:
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.run_it(Interrupted(NONE))
        self.assertIn("interrupted: server s1 exists", self.stderr.getvalue())
