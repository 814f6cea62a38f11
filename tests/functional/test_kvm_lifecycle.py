# SPDX-License-Identifier: Apache-2.0
"""A KVM instance keeps its cards through what can be done to it, and the rest is refused."""

from __future__ import annotations

from typing import Any

import fixtures
from lxml import etree
from nova import exception as nova_exception
from nova.compute import task_states
from nova.tests.functional.api import client

from tests.functional import base, kvm

MINE = (kvm.ALL[0],)


class LifecycleTest(kvm.KVMServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.server = self.boot(self.gpu_flavor(1))
        self.neighbour = self.boot(self.gpu_flavor(1))

    def assertAsBefore(self) -> None:
        self.assertGPUs(self.server, MINE)
        self.assertGPUs(self.neighbour, [kvm.ALL[1]])
        self.assertInventory(total=4, used=2)

    def test_stop_and_start_over_a_service_restart(self) -> None:
        self._stop_server(self.server)
        self.restart_host("host1")
        self.period()
        other = self.boot(self.gpu_flavor(2))
        self.assertGPUs(other, kvm.SECOND_SOCKET)
        self._delete_server(other)
        self._start_server(self.server)
        self.assertAsBefore()

    def test_reboot(self) -> None:
        self._reboot_server(self.server, hard=True)
        self.assertAsBefore()
        self._reboot_server(self.server)
        self.assertIn("Instance soft rebooted successfully", self.log())
        self.assertAsBefore()

    def test_a_soft_reboot_holds_the_cards(self) -> None:
        """As any other start does, from before the guest is told to end. This one does not, and a
        hard reboot follows."""
        gpus = self.computes["host1"].driver._gpus
        held: list[list[str]] = []

        def shutdown(guest: Any) -> None:
            held.append(sorted(map(str, gpus.ledger.now.held_for(guest.uuid))))

        self.useFixture(fixtures.MonkeyPatch("nova.virt.libvirt.guest.Guest.shutdown", shutdown))
        self.flags(wait_soft_reboot_seconds=0, group="libvirt")
        self._reboot_server(self.server)
        self.assertIn("Trying hard reboot", self.log())
        self.assertEqual([list(MINE)], held)
        self.assertAsBefore()

    def test_rebuild(self) -> None:
        self._rebuild_server(self.server, base.IMAGE)
        self.assertAsBefore()

    def test_rescue(self) -> None:
        self.rescue(self.server)
        self.assertEqual(list(MINE), self.rendered(self.server))
        self.perform(self.server, "unrescue", "ACTIVE")
        self.assertAsBefore()
        # Its spawn, the rescue and what came after it.
        starts = self.log().count(f"Starting with GPUs {MINE[0]}")
        self.assertEqual(3, starts)

    def test_host_boot(self) -> None:
        self.lose_power()
        self.restart_host("host1")
        self.assertAsBefore()

    def test_removed_and_installed_again(self) -> None:
        """What the page on installation says: with Nova's own driver guests run on."""
        before = etree.tostring(self.domain(self.server))
        self.flags(compute_driver="libvirt.LibvirtDriver")
        self.restart_host("host1")
        self.one_period()
        self.assertEqual(before, etree.tostring(self.domain(self.server)))
        self.assertInventory(total=4, used=2)
        self._delete_server(self.neighbour)
        # Placement still has its free cards, and GPUFilter sends no instance there.
        self.assertInventory(total=4, used=1)
        self.assertIn("No valid host", self.boot_refused(self.gpu_flavor(1)))
        self._reboot_server(self.server, hard=True)
        self.assertNotIn(b"<hostdev", etree.tostring(self.domain(self.server)))
        self.flags(compute_driver="gpu.GPULibvirtDriver")
        self.restart_host("host1")
        self.period()
        self._reboot_server(self.server, hard=True)
        self.assertGPUs(self.server, MINE)

    def test_shelve_and_unshelve(self) -> None:
        self.flags(shelved_offload_time=0)
        self._shelve_server(self.server)
        self.assertInventory(total=4, used=1)
        other = self.boot(self.gpu_flavor(1))
        self.assertEqual([kvm.ALL[0]], self.rendered(other))
        self._unshelve_server(self.server)
        self.assertGPUs(self.server, [kvm.ALL[2]])
        self.assertInventory(total=4, used=3)

    def test_card_off_the_bus_while_assigned(self) -> None:
        self.leaves = dict.fromkeys(("hold", "reserved"), "it cannot be reset any more")
        for function in (kvm.ALL[0], kvm.ALL[0].replace(".0", ".1")):
            self.hosts["host1"].remove(function)
        self.period()
        self.assertInventory(total=4, used=2)
        self._stop_server(self.server)
        # A cast is a call here, so that what the host raises reaches the API.
        self.assertRaises(client.OpenStackApiException, self._start_server, self.server)
        self._delete_server(self.server)
        self.period()
        self.assertInventory(total=4, reserved=1, used=1)
        self.assertGPUs(self.boot(self.gpu_flavor(2)), kvm.SECOND_SOCKET)


class RefusalsTest(kvm.KVMServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host("host1")
        self.server = self.boot(self.gpu_flavor(1))
        self.before = self.guest(self.server).XMLDesc(0)
        self.start_host("host2")

    def assertGoesOn(self) -> None:
        server = self._wait_until_settled(self.server)
        self.assertEqual("host1", server["OS-EXT-SRV-ATTR:host"])
        self.assertGPUs(self.server, [kvm.ALL[0]])
        self.assertEqual(self.before, self.guest(self.server).XMLDesc(0))
        self.assertInventory(total=4, used=1, host="host1")
        self.assertInventory(total=4, used=0, host="host2")

    def test_suspend(self) -> None:
        self.assertEqual(
            [
                "Failed to suspend instance: the state of the guest's GPUs cannot be saved; stop "
                "or shelve the instance"
            ],
            self.refused({"suspend": None}),
        )
        self.assertGoesOn()

    def test_snapshot_for_which_nova_suspends(self) -> None:
        self.flags(disable_libvirt_livesnapshot=True, group="workarounds")
        instance = self.instance(self.server)
        instance.task_state = task_states.IMAGE_SNAPSHOT
        raised = self.assertRaises(
            nova_exception.InstanceFaultRollback,
            self.computes["host1"].driver.snapshot,
            self.context,
            instance,
            base.IMAGE,
            None,
        )
        self.assertIn("cannot be saved; stop the instance for the snapshot", str(raised))
        self.assertGoesOn()

    def test_live_migration(self) -> None:
        for host in ("host2", None):
            with self.subTest(host=host):
                said = self.refused({"os-migrateLive": {"host": host, "block_migration": "auto"}})
                for details in said:
                    self.assertIn("GPU cannot be moved to another host while the guest", details)
                    self.assertIn("migrate the instance cold", details)
                self.assertTrue(said)
                self.assertGoesOn()

    def test_live_migration_is_refused_at_the_source_too(self) -> None:
        """Where another driver at the destination has nothing against it."""
        driver = self.computes["host1"].driver
        raised = self.assertRaises(
            nova_exception.MigrationPreCheckError,
            driver.check_can_live_migrate_source,
            self.context,
            self.instance(self.server),
            None,
        )
        self.assertIn("The state of a passed through GPU cannot be moved", str(raised))


class ResizeRefusedTest(kvm.KVMServersTestBase):
    # Called instead of cast, the destination would take the source's error for its own.
    CAST_AS_CALL = False

    def test_guest_without_pci_express(self) -> None:
        """At the source, as it runs: at the destination it would be gone."""
        self.flags(hw_machine_type=[], group="libvirt")
        for host in ("host1", "host2"):
            self.start_host(host)
        server = self.boot(self.flavor(), host="host1")
        flavor = self.gpu_flavor(1)
        self.api.post_server_action(server["id"], {"resize": {"flavorRef": flavor}})
        self._wait_for_assert(
            lambda: self.assertIn("Resize error: the guest cannot take", self.log())
        )
        server = self._wait_until_settled(server)
        self.assertEqual("host1", server["OS-EXT-SRV-ATTR:host"])
        self._wait_for_assert(lambda: self.assertEqual({}, self.allocated(server)))
        self.assertIn("machine type is pc", self.log())
