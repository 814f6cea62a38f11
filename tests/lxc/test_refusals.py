# SPDX-License-Identifier: Apache-2.0
"""What cannot be done to a container is refused, and the container goes on as it was."""

from __future__ import annotations

from typing import Any

from lab.cloud import guest
from tests.lxc import base


class RefusalsTest(base.LXCTestCase):
    def _act(self, server: dict[str, Any], action: str, **words: Any) -> str:
        """What the action's events say once it has failed"""
        self.api.post_server_action(server["id"], {action: words or None})
        newest = self.api.get_instance_actions(server["id"])[0]["request_id"]

        def has_failed() -> bool:
            details = self.api.get_instance_action_details(server["id"], newest)
            return bool(details["message"] == "Error")

        self.wait_for(f"{action} has failed", has_failed)
        return self.failure(server)

    def test_suspend_and_rescue(self) -> None:
        """With GPUs and without: to either it could only end in ERROR."""
        for server, gpus in ((self.boot_with(2), {0, 1}), (self.boot(self.flavor()), set())):
            init = guest.init_pid(self._lv, self.domain(server))
            said = self._act(server, "suspend")
            self.assertIn("the state of a container cannot be saved; pause, stop or shelve", said)
            self.wait_until(server, "ACTIVE")

            said = self._act(server, "rescue")
            self.assertIn("openstack server image create", said)
            self.wait_until(server, "ACTIVE")

            self.assertEqual(init, guest.init_pid(self._lv, self.domain(server)))
            self.assertGPUs(server, gpus)
            self._stop_server(server)
            self.assertIn("openstack server image create", self._act(server, "rescue"))
            self.wait_until(server, "SHUTOFF")
            self._start_server(server)
            self.assertGPUs(server, gpus)

    def test_live_migration(self) -> None:
        server = self.boot_with(1)
        said = self._act(server, "os-migrateLive", host=None, block_migration="auto")
        self.assertIn("No valid host", said)  # there is but one
        self.wait_until(server, "ACTIVE")
        self.assertGPUs(server, {0})


class PauseAndSnapshotTest(base.SnapshotTestCase):
    def test_they_work(self) -> None:
        server = self.boot_with(2)
        init = guest.init_pid(self._lv, self.domain(server))
        self.act(server, "pause", "PAUSED")
        self.assertEqual(2, self.usage())
        self.act(server, "unpause", "ACTIVE")
        self.assertGPUs(server, {0, 1})

        self.act(server, "createImage", "ACTIVE", name="of-it")
        self.assertEqual(init, guest.init_pid(self._lv, self.domain(server)))
        self.assertGPUs(server, {0, 1})


class StockTest(base.LXCTestCase):
    """Why they are refused. Where this fails, Nova has learnt it and the refusal can go."""

    MACHINE = "cpu-only"
    # Nova itself gives a container no network namespace, and none starts with id maps and without.
    UID_MAPS = ()

    def test_stock_nova_ends_in_error(self) -> None:
        for action in ("suspend", "rescue"):
            server = self.boot(self.flavor())
            self.api.post_server_action(server["id"], {action: None})
            self._wait_for_server_parameter(server, {"status": "ERROR"})
