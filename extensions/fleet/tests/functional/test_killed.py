# SPDX-License-Identifier: Apache-2.0
"""Commands that write, killed at each of their writes and repeated, and run twice at once: no
instance is stopped for nothing, and nothing stays behind."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from osc_lib import exceptions
from testtools import content

from nova_gpu_fleet.core import names
from osc_gpu_fleet import move_commands, preemption, preemption_candidates
from tests.functional import base, killed, preempting, room, sdk
from tests.functional.killed import When


class Killing(base.GPUServersTestBase):
    def each_write(
        self,
        begin: Callable[[], None],
        run: Callable[[], Any],
        check: Callable[[], None],
    ) -> None:
        """Interrupt *run* at each of its writes, in turn in each way, and run it anew after that.

        Its output is not looked at: a run that is interrupted may well end with an error.
        """
        count = self._interrupted(10**6, When.AFTER, begin, run, check)
        self.assertGreater(count, 0, "it wrote nothing")
        for number, when in zip(range(1, count + 1), itertools.cycle(When), strict=False):
            self._interrupted(number, when, begin, run, check)

    def _interrupted(
        self,
        number: int,
        when: When,
        begin: Callable[[], None],
        run: Callable[[], Any],
        check: Callable[[], None],
    ) -> int:
        begin()
        act = self._once(run) if when is When.MEANWHILE else killed.kill
        with killed.interrupted(number, when, act) as writes:
            self._once(run, killed.Killed)()
        self.addDetail("case", content.text_content(f"{when}: {writes.made}"))
        self._once(run)()
        check()
        return len(writes.made)

    def _once(self, run: Callable[[], Any], *over: type[BaseException]) -> Callable[[], None]:
        def once() -> None:
            with contextlib.suppress(exceptions.CommandError, *over):
                run()

        return once

    def metadata(self, server: Any) -> dict[str, str]:
        return {
            key: value
            for key, value in self._show_server(server)["metadata"].items()
            if key.startswith("gpu:")
        }

    def actions(self, server: Any, action: str) -> int:
        listed = self.api.get_instance_actions(server["id"])
        return [entry["action"] for entry in listed].count(action)

    def marks(self) -> set[str]:
        """The traits of this project's commands that a provider has"""
        url = f"/traits?associated=true&name=in:{names.DRAINED}"
        traits = set(self.placement.get(url, version="1.14").body["traits"])
        url = f"/traits?associated=true&name=startswith:{names.KEPT_UNTIL}"
        return traits | set(self.placement.get(url, version="1.14").body["traits"])


class PreemptionTest(preempting.Preempting, Killing):
    def setUp(self) -> None:
        super().setUp()
        self.stops = 0

    def begin(self) -> None:
        self.undo()
        if self.status(self.three) == "SHUTOFF":
            self._start_server(self.three)
        for key in self.metadata(self.three):
            self.api.api_delete(f"/servers/{self.three['id']}/metadata/{key}")
        self.stops = self.actions(self.three, "stop")

    def check(self) -> None:
        self.assertEqual("SHUTOFF", self.status(self.three))
        self.assertEqual(self.stops + 1, self.actions(self.three, "stop"))
        self.assertEqual({}, self.allocated(self.three))
        self.assertUntouched(self.one, self.young, self.firm)
        self.undo()
        self.assertEqual(set(), self.marks())

    def write(self, server: Any, metadata: dict[str, str]) -> None:
        url, body = f"/servers/{server['id']}/metadata", {"metadata": metadata}
        self.api.api_post(url, body, check_response_status=[200])

    def test_a_flavor(self) -> None:
        self.each_write(self.begin, lambda: self.apply("two"), self.check)

    def test_a_notice_of_another_run(self) -> None:
        clock = SimpleNamespace(sleep=killed.kill, monotonic=time.monotonic)
        with mock.patch.object(preemption, "time", clock):
            self.assertRaises(killed.Killed, self.run_it, "two", "--apply", "--notice", "600")
        notice = self.metadata(self.three)
        self.assertIn(names.PREEMPT_AT, notice)
        # It may be made good still, by a run that goes on meanwhile.
        self.run_it("--apply", "--notice", "600")
        self.assertEqual(notice, self.metadata(self.three))
        long_ago = {names.PREEMPT_AT: "2020-01-01T00:00:00Z"}
        with mock.patch.object(
            preemption_candidates, "had_since", lambda *_: datetime.datetime(2019, 1, 1)
        ):
            self.write(self.three, long_ago)
            self.run_it("--apply", "--notice", "600")
        self.assertEqual({}, self.metadata(self.three))
        # That of an instance that was started again says when it was stopped.
        self.write(self.three, long_ago)
        self.run_it("--apply", "--notice", "600")
        self.assertEqual(long_ago, self.metadata(self.three))


class RoomTest(room.RoomTestBase, Killing):
    def begin(self) -> None:
        for name in ("host1", "host2"):
            sdk.run(self, move_commands.Drain, name, "--undo")
        self.source = self.host_of(self.server)

    def drained(self) -> None:
        """It is on the other host alone, and no move has anything."""
        self.assertEqual("ACTIVE", self._show_server(self.server)["status"])
        self.assertNotEqual(self.source, self.host_of(self.server))
        self.assertEqual({self.host_of(self.server): 1}, self.allocated(self.server))
        self.assertInventory(total=8, used=int(self.host_of(self.server) == "host1"), host="host1")
        self.assertEqual({names.DRAINED}, self.marks())

    def run_it(self, command: type, *arguments: str) -> Any:
        return sdk.run(self, command, *arguments, "--apply")

    def test_drain(self) -> None:
        self.each_write(
            self.begin, lambda: self.run_it(move_commands.Drain, self.source), self.drained
        )
