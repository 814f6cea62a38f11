# SPDX-License-Identifier: Apache-2.0
"""What cannot be done to a container is refused; the KVM tests have what a VM is refused."""

from __future__ import annotations

from tests.functional import base
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
        found = self._wait_until_settled(server, status)
        self.assertEqual("host1", found["OS-EXT-SRV-ATTR:host"])
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

    def test_rescue(self) -> None:
        for server in (self.server, self.plain):
            for status in ("ACTIVE", "SHUTOFF"):
                if status == "SHUTOFF":
                    self._stop_server(server)
                (said,) = self.refused({"rescue": None}, server)
                self.assertIn(f"Instance {server['id']} cannot be rescued: a container is", said)
                self.assertIn("openstack server image create", said)
                self.assertGoesOn(server, status)

    def test_live_migration(self) -> None:
        for host in ("host2", None):
            said = self.refused({"os-migrateLive": {"host": host, "block_migration": "auto"}})
            for details in said:
                self.assertIn("A container with GPUs cannot be moved to another host", details)
                self.assertIn("migrate the instance cold", details)
            self.assertTrue(said)
            self.assertGoesOn(self.server)

    def test_a_host_without_gpus_is_left_to_nova(self) -> None:
        """The stand-in for libvirt saves any guest."""
        self.start_host("host3", machine="cpu-only")
        server = self.boot(self.flavor(), host="host3")
        self.perform(server, "suspend", "SUSPENDED")
