# SPDX-License-Identifier: Apache-2.0
"""An instance with two vGPUs of each kind through what can be done to it."""

from __future__ import annotations

from typing import ClassVar

from nova_gpu.core.vgpu.vgpu import of_slot
from tests.functional import base, divided, mig, plain, profiled
from tests.functional.base import Server
from tests.functional.divided import FIRST, SECOND, WHOLE, slots


class Moves:
    """What a kind says: which vGPUs an instance gets on an empty host, which another flavor's
    gets there, and how many the kernel has."""

    MINE: ClassVar[list[str]]
    OTHER: ClassVar[list[str]]
    # A card that is given whole
    WHOLE: ClassVar[str]

    def wanted(self) -> str:
        """A flavor with two"""
        raise NotImplementedError

    def other(self) -> str:
        """A flavor with one, of another type where there are several"""
        raise NotImplementedError

    def assertMade(self, count: int, host: str = "host1") -> None:
        self.assertEqual(count, len(self.kernels[host].made))

    def setUp(self) -> None:
        super().setUp()
        if not self.computes:
            self.start_host()
        self.server = self.boot(self.wanted())

    def assertMine(self, host: str = "host1") -> None:
        self.assertVGPUs(self.server, self.MINE, host)
        self.assertMade(2, host)

    def test_moves(self) -> None:
        self.start_host("host2")
        self._migrate_server(self.server)
        self.assertMade(2)
        self.confirm(self.server, "host1")
        self.assertMine("host2")
        self.assertMade(0)
        self.force_down("host2")
        self._evacuate_server(self.server, expected_host="host1")
        self._start_server(self.server)
        self.assertEqual(self.MINE, self.recorded(self.server))
        self.bring_back("host2")
        self.assertMade(0, "host2")
        self.assertMine()
        self.flags(shelved_offload_time=0)
        self._shelve_server(self.server)
        self.assertMade(0)
        self._unshelve_server(self.server)
        self.assertMine(self.host_of(self.server))
        host = self.host_of(self.server)
        there = {"host1": "host2", "host2": "host1"}[host]
        resized = self._resize_server(self.server, self.other())
        self.assertEqual(there, resized["OS-EXT-SRV-ATTR:host"])
        self.assertMade(2, host)
        self._revert_resize(self.server)
        self.period(there)
        self.assertMade(0, there)
        self.assertMine(host)
        self._resize_server(self.server, self.other())
        self.confirm(self.server, host)
        self.assertMade(0, host)
        self.assertVGPUs(self.server, self.OTHER, there)
        self._resize_server(self.server, self.gpu_flavor(1))
        self.confirm(self.server, there)
        self.assertGPUs(self.server, [self.WHOLE], host)
        self.assertMade(0, there)


class MediatedTest(Moves, divided.DividedServersTestBase):
    WHOLE = WHOLE
    MINE = slots(FIRST, 64, 0, 1)
    OTHER = slots(FIRST, 65, 0)

    def wanted(self) -> str:
        return self.of_type(64, 2)

    def other(self) -> str:
        return self.of_type(65)


class TypedTest(Moves, profiled.ProfiledServersTestBase):
    """Virtual functions with a type"""

    WHOLE = profiled.WHOLE
    MINE = profiled.slots(1155, *profiled.FIRST[:2])
    OTHER = profiled.slots(1147, profiled.FIRST[0])

    def wanted(self) -> str:
        return self.of_type(1155, 2)

    def other(self) -> str:
        return self.of_type(1147)


class PlainTest(Moves, plain.PlainServersTestBase):
    """Virtual functions as they are, of which nothing is made, and which are not in the matrix"""

    WHOLE = WHOLE
    MINE = plain.slots(FIRST, 1, 2)
    OTHER = plain.slots(FIRST, 1)
    BESIDE = plain.slots(FIRST, 3)

    def wanted(self) -> str:
        return self.flavor(**plain.FLAVOR | {"vgpus": "= 2"})

    def other(self) -> str:
        return self.flavor(**plain.FLAVOR)

    def assertMade(self, count: int, host: str = "host1") -> None:
        pass

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
        said = self.refused({"suspend": None}, self.server)
        self.assertIn("the state of the guest's GPUs cannot be saved", said[0])
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


class MIGTest(Moves, mig.MIGServersTestBase):
    """MIG instances, of which nothing is made either; their guests are containers"""

    WHOLE = mig.WHOLE
    MINE = mig.slots(mig.FIRST, mig.SMALL, 9, 10)
    OTHER = mig.slots(mig.FIRST, mig.LARGE, 1)

    def wanted(self) -> str:
        return self.of_type(mig.SMALL, 2)

    def other(self) -> str:
        return self.of_type(mig.LARGE)

    def assertVGPUs(self, server: Server, expected: list[str], host: str = "host1") -> None:
        nodes: list[str] = []
        for each in expected:
            card, _, number = each.partition("/")
            place = of_slot(int(number.rpartition("/")[2]))
            nodes += mig.nodes_of(mig.CARDS.index(card), *place)
        self.assertInstances(server, expected, nodes, host)

    def assertMade(self, count: int, host: str = "host1") -> None:
        pass


class AnotherHostTest(divided.DividedServersTestBase):
    def test_a_driver_that_makes_none(self) -> None:
        self.start_host("host1")
        self.start_host("host2")
        for address in (FIRST, SECOND):
            self.kernels["host1"].refused.add(address)
        servers = [self.boot(self.of_type(66)) for _ in range(2)]
        for server, slot in zip(servers, slots(FIRST, 66, 0) + slots(SECOND, 66, 0), strict=True):
            self.assertVGPUs(server, [slot], "host2")
