# SPDX-License-Identifier: Apache-2.0
"""An instance keeps its GPUs through everything that stops and starts its guest on one host."""

from __future__ import annotations

from unittest import mock

from keystoneauth1 import exceptions as ks_exc
from nova.scheduler.client import report

from tests.functional import base

MINE = base.SECOND_SOCKET[:2]


class LifecycleTest(base.GPUServersTestBase):
    RESPONSE_VALIDATION = "error"

    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        # So that the first free GPUs are not the instance's own.
        self.neighbour = self.boot(self.gpu_flavor(3))
        self.server = self.boot(self.gpu_flavor(2))
        self.assertGPUs(self.server, MINE)

    def assertAsBefore(self) -> None:
        self.assertGPUs(self.server, MINE)
        self.assertGPUs(self.neighbour, base.FIRST_SOCKET[:3])
        self.assertInventory(used=5)

    def test_hard_reboot(self) -> None:
        self._reboot_server(self.server, hard=True)
        self.assertAsBefore()

    def test_hard_reboot_after_a_service_restart(self) -> None:
        self.restart_host("host1")
        self._reboot_server(self.server, hard=True)
        self.assertAsBefore()

    def test_soft_reboot(self) -> None:
        self._reboot_server(self.server)
        self.assertIn("Instance shutdown successfully", self.log())
        self.assertAsBefore()

    def test_stop_and_start(self) -> None:
        self._stop_server(self.server)
        # A stopped instance keeps its GPUs: they are nobody else's meanwhile.
        self.period()
        other = self.boot(self.gpu_flavor(2))
        self.assertGPUs(other, base.SECOND_SOCKET[2:])
        self._delete_server(other)
        self._start_server(self.server)
        self.assertAsBefore()

    def test_rebuild(self) -> None:
        self._rebuild_server(self.server, base.IMAGE)
        self.assertAsBefore()

    def test_host_boot(self) -> None:
        """Guests that ran are started again before the service has seen its provider tree."""
        self.lose_power()
        self.restart_host("host1")
        self.assertAsBefore()
        self.assertEqual(2, self._running())

    def test_host_boot_before_placement_is_up(self) -> None:
        """As after a power failure. Until then nothing needs it, with GPUs or without."""
        self.lose_power()
        down = mock.Mock(side_effect=ks_exc.ConnectFailure("nobody there"))
        verbs = dict.fromkeys(("get", "put", "post", "delete"), down)
        with mock.patch.multiple(report.SchedulerReportClient, **verbs):
            self.restart_host("host1")
            for server in (self.server, self.neighbour):
                self.assertEqual("ACTIVE", self._show_server(server)["status"])
            self.assertEqual(2, self._running())
        self.period()
        self.assertAsBefore()

    def _running(self) -> int:
        return sum(domain.isActive() for domain in self._domains("host1"))

    def test_shelve_and_unshelve(self) -> None:
        self.flags(shelved_offload_time=-1)
        self._shelve_server(self.server, expected_state="SHELVED")
        self.assertInventory(used=5)
        self._shelve_offload_server(self.server)
        self.assertInventory(used=3)
        # Somebody else has them now, and what the database still says is not looked at.
        other = self.boot(self.gpu_flavor(2))
        self.assertGPUs(other, MINE)
        self._unshelve_server(self.server)
        self.assertGPUs(self.server, base.SECOND_SOCKET[2:])
        self.assertGPUs(other, MINE)
        self.assertInventory(used=7)

    def test_delete_of_a_shelved_instance_touches_nobody(self) -> None:
        self.flags(shelved_offload_time=0)
        self._shelve_server(self.server)
        other = self.boot(self.gpu_flavor(2))
        self._delete_server(self.server)
        self.period()
        self.assertGPUs(other, MINE)
        self.assertInventory(used=5)
