# SPDX-License-Identifier: Apache-2.0
"""Moves that nova-compute did not live to end, and whose GPUs nobody else would give back."""

from __future__ import annotations

from typing import Any

import fixtures
from nova.cmd import manage
from nova.scheduler.client import report

from tests.functional import base

_CLIENT = "nova.scheduler.client.report.SchedulerReportClient"


class OrphanTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.start_host()
        self.neighbour = self.boot(self.gpu_flavor(1))
        self.server = self._resize_server(self.boot(self.gpu_flavor(2)), self.gpu_flavor(4))
        self.assertInventory(used=7)

    def _dies_before(self, name: str) -> Any:
        return fixtures.MonkeyPatch(f"nova.compute.{name}", lambda *args, **kwargs: None)

    def test_deleted_while_its_resize_was_reverted(self) -> None:
        with self._dies_before("rpcapi.ComputeAPI.finish_revert_resize"):
            self.api.post_server_action(self.server["id"], {"revertResize": None})
        self._delete_server(self.server)
        self.assertInventory(used=3)
        self.period()
        self.assertInventory(used=1)
        self.assertGPUs(self.neighbour, [base.FIRST_SOCKET[0]])
        self.assertGPUs(self.boot(self.gpu_flavor(7)), base.ALL[1:])

    def test_novas_own_audit_frees_no_gpu(self) -> None:
        """Of what the move had it deletes the rest, and the next period the GPUs."""
        with self._dies_before("rpcapi.ComputeAPI.finish_revert_resize"):
            self.api.post_server_action(self.server["id"], {"revertResize": None})
        self._delete_server(self.server)
        deleted = 4
        self.assertEqual(deleted, manage.PlacementCommands().audit(delete=True))
        self.assertInventory(used=3)
        self.period()
        self.assertInventory(used=1)

    def test_confirmed(self) -> None:
        with self._dies_before("manager.ComputeManager._delete_allocation_after_move"):
            self.confirm(self.server, source="host1")
        self.assertInventory(used=7)
        self.period()
        self.assertInventory(used=5)
        self.assertGPUs(self.server, base.SECOND_SOCKET)

    def test_one_that_goes_on_keeps_what_it_has(self) -> None:
        self.period()
        self.assertInventory(used=7)
        self.assertNotIn("Released the GPUs of migration", self.log())

    def test_a_service_that_starts_has_no_group_yet(self) -> None:
        self.restart_host("host1")
        self.assertNotIn("Cannot look for", self.log())
        self.assertInventory(used=7)

    def test_placement_does_not_answer(self) -> None:
        answer = report.SchedulerReportClient.get_allocations_for_resource_provider

        def fail(client: Any, context: Any, uuid: str) -> Any:
            if uuid in self.groups().values():
                raise ConnectionError("no route to Placement")
            return answer(client, context, uuid)

        with fixtures.MonkeyPatch(f"{_CLIENT}.get_allocations_for_resource_provider", fail):
            self.period()
        self.assertIn(
            "Cannot look for GPUs that ended moves still hold: no route to Placement", self.log()
        )
        self.assertGPUs(self.neighbour, [base.FIRST_SOCKET[0]])


class AbandonedMoveTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.start_host()
        self.server = self.boot(self.gpu_flavor(2))

    def _loses_in_resize(self, name: str) -> None:
        """*name*: the message that is not sent"""
        lost = f"nova.compute.rpcapi.ComputeAPI.{name}"
        with fixtures.MonkeyPatch(lost, lambda *args, **kwargs: None):
            body = {"resize": {"flavorRef": self.gpu_flavor(4)}}
            self.api.post_server_action(self.server["id"], body)
            self._wait_for_assert(lambda: self.assertInventory(used=6))

    def _dies_in_resize(self, name: str) -> None:
        self._loses_in_resize(name)
        self.restart_host("host1")

    def assertEndedAfterTwoPeriods(self) -> None:
        self.assertInventory(used=6)
        self.period()
        self.period()
        self.assertInventory(used=2)
        self.assertGPUs(self.server, base.FIRST_SOCKET[:2])
        migrations = self.api.get_migrations()
        self.assertEqual(["error"], [each["status"] for each in migrations])
        self.assertGPUs(
            self.boot(self.gpu_flavor(6)), [*base.FIRST_SOCKET[2:], *base.SECOND_SOCKET]
        )

    def test_before_the_claim(self) -> None:
        self._dies_in_resize("prep_resize")
        self.assertEndedAfterTwoPeriods()

    def test_after_the_claim(self) -> None:
        self._dies_in_resize("resize_instance")
        self.assertEndedAfterTwoPeriods()

    def test_one_that_was_seen_once_goes_on(self) -> None:
        self._dies_in_resize("prep_resize")
        self.restart_host("host1")  # which looks once, as the first time
        self.assertInventory(used=6)
        self.assertNotIn("which was interrupted", self.log())

    def test_one_with_a_task_goes_on(self) -> None:
        self._loses_in_resize("resize_instance")
        for _ in range(3):
            self.period()
        self.assertInventory(used=6)
        self.assertNotIn("which was interrupted", self.log())
