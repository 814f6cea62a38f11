# SPDX-License-Identifier: Apache-2.0
"""Resize and evacuation: two hosts, whose cards have the same addresses."""

from __future__ import annotations

from unittest import mock

from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client

from tests.fixtures import libvirt
from tests.functional import base


class MovesTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host("host1")
        self.server = self.boot(self.gpu_flavor(1))
        self.neighbour = self.boot(self.gpu_flavor(1))
        self.start_host("host2")
        # At host2 the instance will get its neighbour's address at host1.
        self.stranger = self.boot(self.gpu_flavor(1), host="host2")

    def assertOthersUntouched(self) -> None:
        self.assertGPUs(self.neighbour, [base.FIRST_SOCKET[1]], "host1")
        self.assertGPUs(self.stranger, [base.FIRST_SOCKET[0]], "host2")

    def assertUsed(self, host1: int, host2: int) -> None:
        self.assertInventory(used=host1, host="host1")
        self.assertInventory(used=host2, host="host2")

    def assertNoDomain(self, host: str) -> None:
        self.assertRaises(fakelibvirt.libvirtError, self.domain, self.server, host)

    def _resize(self, gpus: int) -> None:
        self._resize_server(self.server, self.gpu_flavor(gpus))
        self.assertEqual("host2", self.host_of(self.server))

    def test_resize_and_confirm(self) -> None:
        self._resize(2)
        moved = base.FIRST_SOCKET[1:3]
        self.assertEqual(list(moved), self.recorded(self.server))
        self.assertEqual(list(moved), self.rendered(self.server, "host2"))
        # Until it is confirmed the old GPU is the instance's as well.
        self.assertEqual([base.FIRST_SOCKET[0]], self.rendered(self.server, "host1"))
        self.assertUsed(2, 3)
        self.confirm(self.server, source="host1")
        self.assertNoDomain("host1")
        self.assertGPUs(self.server, moved, "host2")
        self.assertUsed(1, 3)
        self.assertOthersUntouched()
        # And at the source exactly the old one is free again.
        again = self.boot(self.gpu_flavor(7), host="host1")
        self.assertGPUs(again, [base.FIRST_SOCKET[0], *base.ALL[2:]], "host1")

    def test_another_hosts_gpus_are_never_taken_for_ours(self) -> None:
        """Moved, the instance has GPUs of host2, at addresses that its neighbours have here."""
        self._resize(2)
        instance = self.instance(self.server)
        driver = {name: compute.driver for name, compute in self.computes.items()}
        gpus = driver["host2"]._gpus
        with gpus.starts.holding(instance.uuid, gpus.ledger.now.kept_by(instance.uuid)):
            self.assertIn("/dev/nvidia5", self.xml(driver["host2"], instance))
        self.assertNotIn("/dev/nvidia", self.xml(driver["host1"], instance))

    def test_resize_and_revert(self) -> None:
        self._resize(2)
        self.periods()
        self.server = self._revert_resize(self.server)
        self.assertGPUs(self.server, [base.FIRST_SOCKET[0]], "host1")
        self.assertNoDomain("host2")
        self.assertUsed(2, 1)
        self.assertOthersUntouched()
        again = self.boot(self.gpu_flavor(7), host="host2")
        self.assertGPUs(again, base.ALL[1:], "host2")

    def test_old_gpu_is_kept_until_the_resize_is_confirmed(self) -> None:
        self._resize(2)
        self.restart_host("host1")
        self.period("host1")
        again = self.boot(self.gpu_flavor(6), host="host1")
        self.assertGPUs(again, base.ALL[2:], "host1")
        self.boot_refused(self.gpu_flavor(1), host="host1")
        self.assertInventory(used=8, host="host1")

    def test_evacuate_and_the_source_comes_back(self) -> None:
        self.force_down("host1")
        self._evacuate_server(self.server, expected_host="host2")
        self._start_server(self.server)
        self.assertEqual([base.FIRST_SOCKET[1]], self.recorded(self.server))
        self.assertEqual([base.FIRST_SOCKET[1]], self.rendered(self.server, "host2"))
        self.assertEqual([base.FIRST_SOCKET[0]], self.rendered(self.server, "host1"))
        self.bring_back("host1")
        self.assertNoDomain("host1")
        self.assertGPUs(self.server, [base.FIRST_SOCKET[1]], "host2")
        self.assertUsed(1, 2)
        self.assertOthersUntouched()
        self.period("host1")
        self.assertInventory(used=1, host="host1")
        self.assertGPUs(
            self.boot(self.gpu_flavor(7), host="host1"),
            [base.FIRST_SOCKET[0], *base.ALL[2:]],
            "host1",
        )

    def test_failed_move_gives_back_at_the_destination(self) -> None:
        connection = self.connection("host2")
        error = libvirt.error("no", fakelibvirt.VIR_ERR_INTERNAL_ERROR)
        connection.defineXML = mock.Mock(side_effect=error)
        # A cast is a call here, so that what the host raises reaches the API.
        self.assertRaises(
            client.OpenStackApiException, self._resize_server, self.server, self.gpu_flavor(2)
        )
        self._wait_for_state_change(self.server, "ERROR")
        del connection.defineXML
        self.assertOthersUntouched()
        # The instance is the destination's from then on, and stock Nova forgets the source's.
        self.period("host1")
        self.assertInventory(used=1, reserved=0, host="host1")
        self.leaves = {"domain": "Nova leaves it at the source"}


class SameHostTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.start_host()

    def test_not_enough_for_old_and_new(self) -> None:
        server = self.boot(self.gpu_flavor(4))
        refused = self.assertRaises(
            client.OpenStackApiException, self._resize_server, server, self.gpu_flavor(6)
        )
        self.assertIn("NoValidHost", str(refused))
        server = self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
        self.assertGPUs(server, base.FIRST_SOCKET)
        self.assertInventory(used=4)
