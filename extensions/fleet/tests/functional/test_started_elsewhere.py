# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu start`` of instances that gave their GPUs back, with those of another host."""

from __future__ import annotations

import fixtures
from osc_lib import exceptions

from osc_gpu_fleet import move_commands, retries, start
from tests.functional import base, sdk
from tests.functional.test_stopped import Stopping


class StartedElsewhereTest(Stopping, base.GPUServersTestBase):
    """Two hosts; the one of an instance that has given its cards back has none for it."""

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MockPatchObject(retries, "POLL_S", 0.1))
        self.start_host("host2")

    def test_by_its_user_where_its_flavor_lets_it(self) -> None:
        specs = {"gpus": f"= {self.TOTAL}", "gpu:on_stop": "release"}
        moves = self.boot(self.flavor(**specs, **{"gpu:on_stop_move": "true"}), host="host1")
        self._stop_server(moves)
        sdk.run(self, move_commands.Drain, "host1", "--apply")
        (message,) = self.refused({"os-start": None}, moves)
        self.assertIn("its host is drained", message)
        sdk.run(self, move_commands.Drain, "host1", "--undo")
        stays = self.boot(self.all, host="host1")
        every = self.recorded(stays)
        self._stop_server(stays)
        self.boot(self.all, host="host1")
        message = "gpu:on_stop_move=true"
        with self.assertRaisesRegex(exceptions.CommandError, message):
            sdk.run(self, start.StartServer, stays["id"], admin=False)
        self.assertNothing(stays, used=self.TOTAL)
        _, output = sdk.run(self, start.StartServer, moves["id"], admin=False)
        steps = [line.partition(": ")[2] for line in output.splitlines()]
        self.assertEqual(["starting it", "shelving it", "starting it where there are GPUs"], steps)
        self.assertGPUs(moves, every, "host2")
        # There it goes on as here: it gives them back, and gets them again where it is.
        self._stop_server(moves)
        self.assertInventory(host="host2")
        _, output = sdk.run(self, start.StartServer, moves["id"], admin=False)
        self.assertEqual(1, len(output.splitlines()))
        self.assertGPUs(moves, every, "host2")
        # And where no host has any, it says so and stays shelved, for another try.
        self._stop_server(moves)
        self.boot(self.all, host="host2")
        with self.assertRaisesRegex(exceptions.CommandError, "is SHELVED_OFFLOADED: "):
            sdk.run(self, start.StartServer, moves["id"])
        self.assertEqual({}, self.allocated(moves))
