# SPDX-License-Identifier: Apache-2.0
"""Allocations that are wrong, and what ``nova-gpu verify`` and the periods make of them."""

from __future__ import annotations

import io

import fixtures
from nova.cmd import manage

from nova_gpu.virt.verify.sources import Conflict
from tests.functional import failing_steps, verifying


class VerifyTest(verifying.Verifying):
    def test_allocations_that_were_healed_without_gpus(self) -> None:
        server = self.boot(self.gpu_flavor(2))
        before = self.allocations(server)
        self.placement.delete(f"/allocations/{server['id']}")
        self.useFixture(fixtures.MonkeyPatch("sys.stdout", io.StringIO()))
        healed = manage.PlacementCommands().heal_allocations(
            instance_uuid=server["id"], skip_port_allocations=True
        )
        self.assertEqual(0, healed)
        self.assertEqual({}, self.allocated(server))
        self.assertNotEqual({}, self.allocations(server))
        self.assertFound((Conflict.ALLOCATION_DIFFERS, server["id"]))
        self.assertRepaired()
        self.assertEqual(before, self.allocations(server))

    def test_novas_own_audit_frees_no_gpu(self) -> None:
        """Of a move whose instance is gone it deletes the rest, and the next period the GPUs."""
        self.flags(allow_resize_to_same_host=True)
        server = self._resize_server(self.boot(self.gpu_flavor(2)), self.gpu_flavor(4))
        lost = f"{failing_steps.RPC}.finish_revert_resize"
        with fixtures.MonkeyPatch(lost, lambda *args, **kwargs: None):
            self.api.post_server_action(server["id"], {"revertResize": None})
        self._delete_server(server)
        self.assertEqual(4, manage.PlacementCommands().audit(delete=True))
        self.assertInventory(used=2)
        self.period()
        self.assertInventory(used=0)

    def test_at_start_it_is_said_once_and_the_service_runs(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        url = f"/allocations/{server['id']}"
        allocation = self.placement.get(url, version="1.28").body
        (group,) = self.groups().values()
        self.leaves = dict.fromkeys(("allocation", "hold"), "its operator has to look at it")
        # One too many, of which no period is sure that nothing has it
        allocation["allocations"][group]["resources"]["PGPU"] = 2
        self.placement.put(url, allocation, version="1.28")
        log = self.useFixture(fixtures.FakeLogger("nova_gpu.virt.verify.startup_check"))
        self.restart_host("host1")
        self.period()
        self.assertNotIn(str(Conflict.ALLOCATION_DIFFERS), log.output)
        for _ in range(3):
            self.period()
        self.assertEqual(1, log.output.count(str(Conflict.ALLOCATION_DIFFERS)), log.output)
        self.assertIn("nova-gpu verify --repair", log.output)
