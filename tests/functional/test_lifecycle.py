# SPDX-License-Identifier: Apache-2.0
"""What can be done to an instance on its host, the same for containers and for KVM guests.

The matrix (doc/source/reference/operations.csv) says which other tests there are.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import fixtures
from keystoneauth1 import exceptions as ks_exc
from lxml import etree
from nova.objects import host_mapping
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import driver as libvirt_driver

from tests.functional import base, kvm


class Host:
    """One host, a neighbour with the first GPU, and an instance with another."""

    SOFT_REBOOTED: str

    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.neighbour = self.boot(self.gpu_flavor(1))
        self.neighbours = self.recorded(self.neighbour)
        self.server = self.boot(self.gpu_flavor(1))
        self.mine = self.recorded(self.server)

    def assertAsBefore(self, used: int = 2) -> None:
        self.assertGPUs(self.server, self.mine)
        self.assertOnly(used)

    def assertOnly(self, used: int) -> None:
        """The neighbour has what it had, and Placement counts that many."""
        self.assertGPUs(self.neighbour, self.neighbours)
        self.period()
        self.assertInventory(used=used)

    def assertNoDomain(self) -> None:
        self.assertRaises(fakelibvirt.libvirtError, self.domain, self.server)


class Lifecycle(Host):
    RESPONSE_VALIDATION = "error"

    def test_create_several_and_delete(self) -> None:
        got = []
        for server in self.boot_several(self.gpu_flavor(1), 2):
            got += self.recorded(server)
            self.assertGPUs(server, got[-1:])
        self.assertEqual(2, len(set(got) - {*self.mine, *self.neighbours}))
        self.assertAsBefore(used=4)
        self._delete_server(self.server)
        self.assertNoDomain()
        self.assertOnly(used=3)
        self.assertGPUs(self.boot(self.gpu_flavor(1)), self.mine)

    def test_what_its_guest_comes_back_from(self) -> None:
        for operation in (self._reboot, self._rebuild, self._rescue, self._stop_and_start):
            with self.subTest(operation=operation.__name__):
                operation()
                self.assertAsBefore()

    def _reboot(self) -> None:
        self._reboot_server(self.server, hard=True)
        self.assertAsBefore()
        self._reboot_server(self.server)
        self.assertIn(self.SOFT_REBOOTED, self.log())

    def _rebuild(self) -> None:
        self._rebuild_server(self.server, base.IMAGE)

    def _rescue(self) -> None:
        """Refused to containers: test_refusals."""

    def _stop_and_start(self) -> None:
        """Stopped, it keeps its GPUs, also over a restart of the service."""
        self._stop_server(self.server)
        self.restart_host("host1")
        self.period()
        other = self.boot(self.gpu_flavor(2))
        self.assertEqual(set(), {*self.mine} & {*self.recorded(other)})
        self._delete_server(other)
        self._start_server(self.server)

    def test_host_boot(self) -> None:
        """As after a power failure, before Placement is up: until then nothing needs it."""
        self.lose_power()
        down = mock.Mock(side_effect=ks_exc.ConnectFailure("nobody there"))
        verbs = dict.fromkeys(("get", "put", "post", "delete"), down)
        with mock.patch.multiple(report.SchedulerReportClient, **verbs):
            self.restart_host("host1")
            for server in (self.server, self.neighbour):
                self.assertEqual("ACTIVE", self._show_server(server)["status"])
            self.assertEqual(2, sum(each.isActive() for each in self._domains("host1")))
        self.assertAsBefore()

    def test_what_lets_it_run(self) -> None:
        for operation in (self._pause, self._lock, self._snapshot, self._restart_the_service):
            with self.subTest(operation=operation.__name__):
                operation()
                self.assertAsBefore()

    def _pause(self) -> None:
        self.perform(self.server, "pause", "PAUSED")
        self.assertEqual(self.mine, self.rendered(self.server))
        self.assertOnly(used=2)
        self.perform(self.server, "unpause", "ACTIVE")

    def _lock(self) -> None:
        self.api.post_server_action(self.server["id"], {"lock": None})
        member = self.api_fixture.api
        member.microversion = self.microversion
        for action in ({"os-stop": None}, {"resize": {"flavorRef": self.gpu_flavor(2)}}):
            self.assertAnswer(409, member.post_server_action, self.server["id"], action)

    def _snapshot(self) -> None:
        # The stand-in's guests have no disk that QEMU could copy.
        name = "nova.virt.libvirt.driver.LibvirtDriver._live_snapshot"
        self.stub_out(name, lambda *args: None)
        self._snapshot_server(self.server, "of-it")
        self._wait_until_settled(self.server)
        self.assertIn("of-it", [each["name"] for each in self.glance.images.values()])

    def _restart_the_service(self) -> None:
        self.restart_host("host1")

    def test_delete_while_the_host_is_down(self) -> None:
        """Its guest runs on: its GPU is nobody else's before Nova's periodic task has ended it."""
        self.force_down("host1")
        self._delete_server(self.server)
        self.bring_back("host1")
        self.assertEqual(self.mine, self.rendered(self.server))
        self.assertInventory(reserved=1, used=1)
        others = self.boot(self.gpu_flavor(self.TOTAL - 2))
        self.assertNotIn(self.mine[0], self.recorded(others))
        self.boot_refused(self.gpu_flavor(1))
        self._delete_server(others)
        self.reap()
        self.assertNoDomain()
        self.assertOnly(used=1)
        self.assertGPUs(self.boot(self.gpu_flavor(1)), self.mine)

    def test_soft_delete_and_restore(self) -> None:
        with self.soft_deleted(self.server):
            self.assertOnly(used=2)
            self.assertEqual(self.mine, self.rendered(self.server))
            self.restart_host("host1")
            self.perform(self.server, "restore", "ACTIVE")
            self.assertAsBefore()
        with self.soft_deleted(self.server):
            self.reclaim(self.server)
        self.assertNoDomain()
        self.assertOnly(used=1)
        self.assertGPUs(self.boot(self.gpu_flavor(1)), self.mine)

    def test_shelve_and_offload(self) -> None:
        self.flags(shelved_offload_time=-1)
        self._shelve_server(self.server, expected_state="SHELVED")
        self.assertOnly(used=2)
        self._unshelve_server(self.server)
        self.assertAsBefore()
        self._shelve_server(self.server, expected_state="SHELVED")
        self._shelve_offload_server(self.server)
        self.assertNoDomain()
        self.assertOnly(used=1)
        # Somebody else has them now, and what the database still says is not looked at.
        other = self.boot(self.gpu_flavor(1))
        self.assertGPUs(other, self.mine)
        self._unshelve_server(self.server)
        self.assertEqual(set(), {*self.mine, *self.neighbours} & {*self.recorded(self.server)})
        self.assertGPUs(self.server, self.recorded(self.server))
        self._shelve_server(self.server, expected_state="SHELVED")
        self._shelve_offload_server(self.server)
        self._delete_server(self.server)
        self.assertGPUs(other, self.mine)
        self.assertOnly(used=2)

    def test_host_deleted_and_started_again(self) -> None:
        for server in (self.server, self.neighbour):
            self._delete_server(server)
        (service,) = self.api.get_services(binary="nova-compute", host="host1")
        self.computes["host1"].stop()
        self.api.api_delete(f"/os-services/{service['id']}")
        providers = self.placement.get("/resource_providers").body["resource_providers"]
        self.assertEqual([], [each["name"] for each in providers if "_gpu_" in each["name"]])
        self.restart_host("host1")
        self.assertInventory(used=0)
        # As with any host that is new: nova-manage cell_v2 discover_hosts
        host_mapping.discover_hosts(self.context)
        self.assertGPUs(self.boot(self.gpu_flavor(1)), self.neighbours)

    def test_made_before_its_flavor_had_gpus(self) -> None:
        """An instance keeps the flavor it was made with."""
        flavor = self.flavor()
        old = self.boot(flavor)
        self.api.post_extra_spec(flavor, {"extra_specs": {"gpus": "= 1"}})
        self._reboot_server(old, hard=True)
        self._stop_server(old)
        self.restart_host("host1")
        self._start_server(old)
        self.assertGPUs(old, [])
        new = self.boot(flavor)
        self.assertGPUs(new, self.recorded(new))
        self.assertAsBefore(used=3)


class LXCLifecycleTest(Lifecycle, base.GPUServersTestBase):
    SOFT_REBOOTED = "Instance shutdown successfully"


class KVMLifecycleTest(Lifecycle, kvm.KVMServersTestBase):
    SOFT_REBOOTED = "Instance soft rebooted successfully"

    def _rescue(self) -> None:
        self.rescue(self.server)
        self.assertEqual(self.mine, self.rendered(self.server))
        self.perform(self.server, "unrescue", "ACTIVE")

    def test_removed_and_installed_again(self) -> None:
        """What the page on installation says: with Nova's own driver guests run on."""
        self.leaves = {"bill": "Nova's own driver sends no gpu.release of what it deletes"}
        before = etree.tostring(self.domain(self.server))
        self.flags(compute_driver="libvirt.LibvirtDriver")
        self.restart_host("host1")
        self.one_period()
        self.assertEqual(before, etree.tostring(self.domain(self.server)))
        self._delete_server(self.neighbour)
        # Placement still has its free cards, and GPUFilter sends no instance there.
        self.assertInventory(used=1)
        self.assertIn("No valid host", self.boot_refused(self.gpu_flavor(1)))
        self._reboot_server(self.server, hard=True)
        self.assertNotIn(b"<hostdev", etree.tostring(self.domain(self.server)))
        self.flags(compute_driver="gpu.GPULibvirtDriver")
        self.restart_host("host1")
        self.period()
        self._reboot_server(self.server, hard=True)
        self.assertGPUs(self.server, self.mine)


class DeletedWhileBuildingTest(Host, base.GPUServersTestBase):
    # The deletion waits for the building: who asked for it does not, here.
    CAST_AS_CALL = False

    def test_when_its_guest_was_just_started(self) -> None:
        original = libvirt_driver.LibvirtDriver._create_guest
        deleted: list[str] = []

        def create(
            driver: Any, context: Any, xml: str, instance: Any, *args: Any, **kw: Any
        ) -> Any:
            guest = original(driver, context, xml, instance, *args, **kw)
            deleted.append(instance.uuid)
            self.api.delete_server(instance.uuid)
            return guest

        with fixtures.MonkeyPatch("nova.virt.libvirt.driver.LibvirtDriver._create_guest", create):
            server = self.api.post_server(
                {"server": self._build_server(flavor_id=self.gpu_flavor(1), networks="none")}
            )
            self._wait_until_deleted(server)
        self.assertEqual([server["id"]], deleted)
        self.assertAsBefore()
        rest = self.boot(self.gpu_flavor(self.TOTAL - 2))
        self.assertGPUs(rest, self.recorded(rest))
