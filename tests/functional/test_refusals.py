# SPDX-License-Identifier: Apache-2.0
"""What cannot be done to an instance with GPUs is refused, and its guest goes on."""

from __future__ import annotations

from nova import exception as nova_exception
from nova.compute import task_states

from tests.functional import base, kvm
from tests.functional.base import Server


class ContainerRefusalsTest(base.GPUServersTestBase):
    # As in a cloud: what a host raises is logged by the host alone.
    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.start_host("host1")
        self.server = self.boot(self.gpu_flavor(1))
        self.plain = self.boot(self.flavor())
        self.start_host("host2")

    def assertGoesOn(self, server: Server, status: str = "ACTIVE") -> None:
        answer = self._wait_until_settled(server, status)
        self.assertEqual("host1", answer["OS-EXT-SRV-ATTR:host"])
        self.assertInventory(used=1, host="host1")
        self.assertInventory(used=0, host="host2")
        self.assertNotIn("Traceback", self.log())
        if status == "ACTIVE":
            gpus = [base.FIRST_SOCKET[0]] if server is self.server else []
            self.assertGPUs(server, gpus)

    def test_suspend(self) -> None:
        for server in (self.server, self.plain):
            self.assertEqual(
                [
                    "Failed to suspend instance: the state of a container cannot be saved; pause, "
                    "stop or shelve the instance"
                ],
                self.refused({"suspend": None}, server),
            )
            self.assertGoesOn(server)
        # A host without GPUs is left to Nova, and the stand-in for libvirt saves any guest.
        self.start_host("host3", machine="cpu-only")
        self.perform(self.boot(self.flavor(), host="host3"), "suspend", "SUSPENDED")

    def test_rescue(self) -> None:
        for server in (self.server, self.plain):
            for status in ("ACTIVE", "SHUTOFF"):
                if status == "SHUTOFF":
                    self._stop_server(server)
                (message,) = self.refused({"rescue": None}, server)
                self.assertIn(f"Instance {server['id']} cannot be rescued: a container is", message)
                self.assertIn("openstack server image create", message)
                self.assertGoesOn(server, status)

    def test_live_migration(self) -> None:
        for host in ("host2", None):
            messages = self.refused({"os-migrateLive": {"host": host, "block_migration": "auto"}})
            for details in messages:
                self.assertIn("A container with GPUs cannot be moved to another host", details)
                self.assertIn("migrate the instance cold", details)
            self.assertTrue(messages)
            self.assertGoesOn(self.server)


class PlaceTest(base.GPUServersTestBase):
    leaves = {"reserved": "the card is gone"}  # noqa: RUF012
    HOSTS = ("host1",)

    def test_neither_host_nor_card(self) -> None:
        """The user reads of neither, the operator of both."""
        server = self.boot(self.gpu_flavor(1))
        self._stop_server(server)
        (address,) = self.recorded(server)
        self.hosts["host1"].remove(address)
        self.period()
        (details,) = self.refused({"os-start": None}, server)
        why = "it is no longer on the PCI bus"
        self.assertIn(f"a GPU cannot be given: {why}; repair or replace the card", details)
        self.assertNotIn(address, details)
        self.assertNotIn("host1", details)
        reason = f"on host1: GPU {address} cannot be given: {why}"
        self.assertEqual(1, self.log().count(f"Refused to start the guest: {reason}"))


class KVMRefusalsTest(kvm.KVMServersTestBase):
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
        self.assertInventory(used=1, host="host1")
        self.assertInventory(used=0, host="host2")

    def test_what_would_save_its_state(self) -> None:
        self.assertEqual(
            [
                "Failed to suspend instance: the state of the guest's GPUs cannot be saved; stop "
                "or shelve the instance"
            ],
            self.refused({"suspend": None}),
        )
        self.assertGoesOn()
        self.flags(disable_libvirt_livesnapshot=True, group="workarounds")
        instance = self.instance(self.server)
        instance.task_state = task_states.IMAGE_SNAPSHOT
        snapshot = self.computes["host1"].driver.snapshot
        error = nova_exception.InstanceFaultRollback
        raised = self.assertRaises(error, snapshot, self.context, instance, base.IMAGE, None)
        self.assertIn("cannot be saved; stop the instance for the snapshot", str(raised))
        self.assertGoesOn()

    def test_live_migration(self) -> None:
        for host in ("host2", None):
            with self.subTest(host=host):
                messages = self.refused(
                    {"os-migrateLive": {"host": host, "block_migration": "auto"}}
                )
                for details in messages:
                    self.assertIn("GPU cannot be moved to another host while the guest", details)
                    self.assertIn("migrate the instance cold", details)
                self.assertTrue(messages)
                self.assertGoesOn()
        # At the source too, where another driver at the destination has nothing against it
        check = self.computes["host1"].driver.check_can_live_migrate_source
        error, instance = nova_exception.MigrationPreCheckError, self.instance(self.server)
        raised = self.assertRaises(error, check, self.context, instance, None)
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
        q35 = self.image(hw_machine_type="q35")
        server = self.boot(self.flavor(), host="host1", image_uuid=q35)
        self._resize_server(server, flavor)
        self.confirm(server, "host1")
        (card,) = self.recorded(server)
        self.assertGPUs(server, [card], "host2")
