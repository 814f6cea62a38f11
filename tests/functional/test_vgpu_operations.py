# SPDX-License-Identifier: Apache-2.0
"""An instance with two vGPUs that are not in the matrix, through what can be done to it."""

from __future__ import annotations

from tests.functional import base, divided, plain
from tests.functional.divided import FIRST, SECOND, WHOLE, slots


class PlainTest(plain.PlainServersTestBase):
    """Virtual functions as they are"""

    MINE = plain.slots(FIRST, 1, 2)
    BESIDE = plain.slots(FIRST, 3)

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.wanted())

    def wanted(self) -> str:
        """A flavor with two"""
        return self.flavor(**plain.FLAVOR | {"vgpus": "= 2"})

    def other(self) -> str:
        return self.flavor(**plain.FLAVOR)

    def assertMine(self, host: str = "host1") -> None:
        self.assertVGPUs(self.server, self.MINE, host)

    def test_moves(self) -> None:
        self.start_host("host2")
        self._migrate_server(self.server)
        self.confirm(self.server, "host1")
        self.assertMine("host2")
        self.force_down("host2")
        self._evacuate_server(self.server, expected_host="host1")
        self._start_server(self.server)
        self.assertEqual(self.MINE, self.recorded(self.server))
        self.bring_back("host2")
        self.assertMine()
        self.flags(shelved_offload_time=0)
        self._shelve_server(self.server)
        self._unshelve_server(self.server)
        self.assertMine(self.host_of(self.server))
        host = self.host_of(self.server)
        there = {"host1": "host2", "host2": "host1"}[host]
        resized = self._resize_server(self.server, self.other())
        self.assertEqual(there, resized["OS-EXT-SRV-ATTR:host"])
        self._revert_resize(self.server)
        self.period(there)
        self.assertMine(host)
        self._resize_server(self.server, self.other())
        self.confirm(self.server, host)
        self.assertVGPUs(self.server, self.MINE[:1], there)
        self._resize_server(self.server, self.gpu_flavor(1))
        self.confirm(self.server, there)
        self.assertGPUs(self.server, [WHOLE], host)

    def test_what_its_guest_comes_back_from(self) -> None:
        for hard in (False, True):
            self._reboot_server(self.server, hard=hard)
            self.assertMine()
        self._rebuild_server(self.server, base.IMAGE)
        self.assertMine()
        self.rescue(self.server)
        self.assertEqual(2, len(self.domain(self.server).xpath("devices/hostdev[not(address)]")))
        self.perform(self.server, "unrescue", "ACTIVE")
        self.perform(self.server, "pause", "PAUSED")
        self.perform(self.server, "unpause", "ACTIVE")
        messages = self.refused({"suspend": None}, self.server)
        self.assertIn("the state of the guest's GPUs cannot be saved", messages[0])
        self.assertMine()
        self._stop_server(self.server)
        self.restart_host("host1")
        self.period()
        # Stopped, it keeps them.
        self.assertVGPUs(self.boot(self.other()), self.BESIDE)
        self._start_server(self.server)
        self.assertMine()

    def test_deleted(self) -> None:
        """And restored, reclaimed, while its host is down; several by one request"""
        with self.soft_deleted(self.server):
            self.period()
            self.assertVGPUs(self.boot(self.other()), self.BESIDE)
            self.perform(self.server, "restore", "ACTIVE")
            self.assertMine()
        with self.soft_deleted(self.server):
            self.reclaim(self.server)
        self.server = self.boot(self.wanted())
        self.force_down("host1")
        self._delete_server(self.server)
        self.bring_back("host1")
        self.period()
        # Its guest runs on: its room is nobody else's before Nova's periodic task has ended it.
        self.assertEqual(2, self.vgpus()[1])
        self.reap()
        self.period()
        for server in self.boot_several(self.wanted(), 2):
            self.assertVGPUs(server, self.recorded(server))

    def test_resizes_on_the_same_host(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self._resize_server(self.server, self.other())
        self._revert_resize(self.server)
        self.period()
        self.assertMine()
        for flavor, expected in ((self.other(), self.BESIDE), (self.flavor(), [])):
            self._resize_server(self.server, flavor)
            self.confirm(self.server, "host1")
            self.assertVGPUs(self.server, expected)


class MediatedTest(divided.DividedServersTestBase):
    HOSTS = ("host1", "host2")

    def test_resizes(self) -> None:
        """To another type and to a whole card: what was made is removed when it is confirmed."""
        server = self.boot(self.of_type(64, 2), host="host1")
        self._resize_server(server, self.of_type(65))
        self.confirm(server, "host1")
        self.assertVGPUs(server, slots(FIRST, 65, 0), "host2")
        self._resize_server(server, self.gpu_flavor(1))
        self.confirm(server, "host2")
        self.assertGPUs(server, [WHOLE])
        self.assertEqual([{}, {}], [dict(kernel.made) for kernel in self.kernels.values()])

    def test_a_driver_that_makes_none(self) -> None:
        """Another host is tried."""
        for address in (FIRST, SECOND):
            self.kernels["host1"].refused.add(address)
        servers = [self.boot(self.of_type(66)) for _ in range(2)]
        for server, slot in zip(servers, slots(FIRST, 66, 0) + slots(SECOND, 66, 0), strict=True):
            self.assertVGPUs(server, [slot], "host2")
