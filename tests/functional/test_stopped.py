# SPDX-License-Identifier: Apache-2.0
"""Instances that give their GPUs back when they are stopped."""

from __future__ import annotations

import json
from unittest import mock

from nova.compute import task_states

from osc_gpu import explain
from tests.functional import base, kvm, sdk
from tests.functional.readings import Server


class Stopping:
    """Flavors of all cards of a host, which they give back."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.all = self.flavor(**{"gpus": f"= {self.TOTAL}", "gpu:on_stop": "release"})

    def assertNothing(self, server: Server, used: int = 0) -> None:
        self.assertEqual("SHUTOFF", self._show_server(server)["status"])
        self.assertEqual([], self.rendered(server))
        self.assertEqual(([], {}), self.has(server))
        self.assertInventory(used=used)

    def has(self, server: Server) -> tuple[list[str], dict[str, int]]:
        return self.recorded(server), self.allocated(server)


class StoppedTest(Stopping, kvm.KVMServersTestBase):
    """One host, whose cards tenants have in turn"""

    def test_two_tenants_take_turns(self) -> None:
        first = self.boot(self.all)
        every = self.recorded(first)
        self.assertEqual(self.TOTAL, len(every))
        self._stop_server(first)
        self.assertNothing(first)
        # Its disk and all else stay; nobody waits for a period.
        second = self.boot(self.all)
        self.assertGPUs(second, every)
        (message,) = self.refused({"os-start": None}, first)
        self.assertIn("the instance gave its GPUs back, and gets none", message)
        self.assertNotIn(second["id"], message)
        # Which its user may not read with Nova's default policies.
        _, shown, _ = sdk.shown(self, explain.ExplainServer, "-f", "json", first["id"], admin=False)
        self.assertIn("start at ", json.loads(shown)["last_failure"])
        why = json.loads(shown)["failure_reason"]
        self.assertIn(
            "most often: its host cannot give it GPUs now: neither those that it kept", why[0]
        )
        for action in ({"reboot": {"type": "HARD"}}, {"rescue": {"rescue_image_ref": base.IMAGE}}):
            self.assertIn("and gets none now", self.refused(action, first)[0])
            self._wait_for_state_change(first, "SHUTOFF")
            self.assertNothing(first, used=self.TOTAL)
        self.period()
        self.assertGPUs(second, every)

        self._stop_server(second)
        self._start_server(first)
        self.assertGPUs(first, every)
        self.period()
        self.restart_host("host1")
        self.assertGPUs(first, every)
        self._stop_server(first)
        self._delete_server(first)
        self._start_server(second)
        self.assertGPUs(second, every)
        # Who bills by notifications bills each for its turns.
        turns = [server["id"] for server in (first, second, first, second)]
        billed = [(kind, turn) for turn in turns for kind in ("gpu.claim", "gpu.release")]
        events = [
            (notification.event_type, notification.payload["instance_uuid"])
            for notification in self.sent()
        ]
        self.assertEqual(billed[:-1], events)

    def test_a_stored_refusal_ends_with_its_operation(self) -> None:
        server = self.boot(self.all)
        self._stop_server(server)
        other = self.boot(self.gpu_flavor(1))
        with mock.patch("nova.compute.utils.notify_usage_exists", side_effect=RuntimeError):
            self.refused({"rescue": {"rescue_image_ref": base.IMAGE}}, server)
        self._delete_server(other)
        self.perform(server, "reboot", "ACTIVE", {"type": "HARD"})
        self.perform(server, "reboot", "ACTIVE", {"type": "HARD"})
        self.assertGPUs(server, self.recorded(server))

    def test_a_start_of_the_service_that_repeats_a_refused_reboot(self) -> None:
        """It goes on, the user reads why, and Nova stops the instance."""
        server = self.boot(self.all)
        self._stop_server(server)
        self.boot(self.gpu_flavor(1))
        newest = self.api.get_instance_actions(server["id"])[0]["request_id"]
        instance = self.instance(server)
        instance.task_state = task_states.REBOOT_PENDING_HARD
        instance.save()
        with self.on("host1"):
            service = self.computes["host1"]
            service.stop()  # as for SIGHUP: the driver stays
            service.start()
        (message,) = self.failure(server["id"], newest)
        self.assertIn("and gets none now", message)
        with self.on("host1"):
            self.computes["host1"].manager._sync_power_states(self.context)
        self._wait_until_settled(server, "SHUTOFF")
        self.assertNothing(server, used=1)
