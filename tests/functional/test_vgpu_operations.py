# SPDX-License-Identifier: Apache-2.0
"""An instance with two vGPUs of each kind through what can be done to it."""

from __future__ import annotations

from typing import ClassVar
from unittest import mock

from nova_gpu.core.vgpu.vgpu import of_slot
from tests.functional import base, divided, mig, plain, profiled
from tests.functional.base import Server
from tests.functional.divided import FIRST, SECOND, WHOLE, slots


class Operations:
    """What a kind says: which vGPUs an instance gets on an empty host, which another flavor's
    gets there, and which beside the first; and how many the kernel has."""

    MINE: ClassVar[list[str]]
    OTHER: ClassVar[list[str]]
    BESIDE: ClassVar[list[str]]
    # A card that is given whole
    WHOLE: ClassVar[str]

    def wanted(self) -> str:
        """A flavor with two"""
        raise NotImplementedError

    def other(self) -> str:
        """A flavor with one, of another type where there are several"""
        raise NotImplementedError

    def reserved(self) -> int:
        """What host1 has of the type of :attr:`MINE` and offers to nobody"""
        raise NotImplementedError

    def assertMade(self, count: int, host: str = "host1") -> None:
        self.assertEqual(count, len(self.kernels[host].made))

    def assertDone(self, count: int) -> None:
        """How often the kernel of host1 has made one"""
        self.assertEqual(count, len(self.kernels["host1"].done))

    def setUp(self) -> None:
        super().setUp()
        if not self.computes:
            self.start_host()
        self.server = self.boot(self.wanted())

    def assertMine(self, host: str = "host1") -> None:
        self.assertVGPUs(self.server, self.MINE, host)
        self.assertMade(2, host)

    def test_what_its_guest_comes_back_from(self) -> None:
        self.assertMine()
        for hard in (False, True):
            self._reboot_server(self.server, hard=hard)
            self.assertMine()
        self._rebuild_server(self.server, base.IMAGE)
        self.assertMine()
        self._rescue()
        self.assertMine()
        self.perform(self.server, "pause", "PAUSED")
        self.perform(self.server, "unpause", "ACTIVE")
        self.assertMine()
        self._refuse()
        self.assertMine()
        self._stop_server(self.server)
        self.restart_host("host1")
        self.period()
        self.assertMade(2)
        # Stopped, it keeps them.
        other = self.boot(self.other(), host="host1")
        self.assertVGPUs(other, self.BESIDE)
        self._start_server(self.server)
        self.assertVGPUs(self.server, self.MINE)
        self.assertDone(3)  # what is there is not made again
        self._boot_host(other)

    def _rescue(self) -> None:
        self.rescue(self.server)
        self.assertEqual(2, len(self.domain(self.server).xpath("devices/hostdev[not(address)]")))
        self.perform(self.server, "unrescue", "ACTIVE")

    def _refuse(self) -> None:
        said = self.refused({"suspend": None}, self.server)
        self.assertIn("the state of the guest's GPUs cannot be saved", said[0])

    def _boot_host(self, other: Server) -> None:
        """Only those that are to be made are gone then."""

    def test_deleted(self) -> None:
        """And restored, reclaimed, while its host is down, as the service ends; and made anew"""
        with self.soft_deleted(self.server):
            self.period()
            self.assertMade(2)
            other = self.boot(self.other())
            self.assertVGPUs(other, self.BESIDE)
            self.perform(self.server, "restore", "ACTIVE")
            self.assertVGPUs(self.server, self.MINE)
        with self.soft_deleted(self.server):
            self.reclaim(self.server)
        self.assertMade(1)
        self._delete_server(other)
        self.period()
        # Its guest runs on: its room is nobody else's before Nova's periodic task has ended it.
        self.server = self.boot(self.wanted())
        self.assertMine()
        self.force_down("host1")
        self._delete_server(self.server)
        self.bring_back("host1")
        self.period()
        self.assertMade(2)
        self.assertEqual(2, self.reserved())
        other = self.boot(self.other())
        self.assertVGPUs(other, self.BESIDE)
        self.reap()
        self.assertMade(1)
        self._delete_server(other)
        self.period()
        # The service ends between a domain and its vGPU.
        self.server = self.boot(self.wanted())
        driver = self.computes["host1"].driver
        with mock.patch.object(driver._gpus.vgpus, "release"):
            self._delete_server(self.server)
        self.assertMade(2)
        self.restart_host("host1")
        self.assertMade(0)
        self.period()
        self.assertEqual(0, self.reserved())
        # Of several by one request each has its own.
        several = self.boot_several(self.wanted(), 2)
        held = [slot for server in several for slot in self.recorded(server)]
        self.assertEqual(4, len(set(held)))
        for server in several:
            self.assertVGPUs(server, self.recorded(server))
        self.assertMade(4)

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

    def test_resizes_on_the_same_host(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self._resize_server(self.server, self.other())
        self.assertMade(3)
        self._revert_resize(self.server)
        self.period()
        self.assertMine()
        self._resize_server(self.server, self.other())
        self.confirm(self.server, "host1")
        self.assertVGPUs(self.server, self.BESIDE)
        self.assertMade(1)
        self._resize_server(self.server, self.flavor())
        self.confirm(self.server, "host1")
        self.assertVGPUs(self.server, [])
        self.assertMade(0)


class Made:
    """Of those that are to be made"""

    def _boot_host(self, other: Server) -> None:
        """Nothing is there, and it is made again before anybody else has its room."""
        self._stop_server(self.server)
        self.kernels["host1"].forget_all()
        self.restart_host("host1")
        self.assertMade(3)
        self.assertVGPUs(other, self.BESIDE)
        self.kernels["host1"].forget_all()
        self._start_server(self.server)
        self.assertMine()


class MediatedTest(Made, Operations, divided.DividedServersTestBase):
    WHOLE = WHOLE
    MINE = slots(FIRST, 64, 0, 1)
    OTHER = slots(FIRST, 65, 0)
    BESIDE = slots(SECOND, 65, 0)

    def wanted(self) -> str:
        return self.of_type(64, 2)

    def other(self) -> str:
        return self.of_type(65)

    def reserved(self) -> int:
        return self.inventories()[64][1]


class TypedTest(Made, Operations, profiled.ProfiledServersTestBase):
    """Virtual functions with a type"""

    WHOLE = profiled.WHOLE
    MINE = profiled.slots(1155, *profiled.FIRST[:2])
    OTHER = profiled.slots(1147, profiled.FIRST[0])
    BESIDE = profiled.slots(1147, profiled.SECOND[0])

    def wanted(self) -> str:
        return self.of_type(1155, 2)

    def other(self) -> str:
        return self.of_type(1147)

    def reserved(self) -> int:
        return self.inventories()[1155][1]


class PlainTest(Operations, plain.PlainServersTestBase):
    """Virtual functions as they are, of which nothing is made"""

    WHOLE = WHOLE
    MINE = plain.slots(FIRST, 1, 2)
    OTHER = plain.slots(FIRST, 1)
    BESIDE = plain.slots(FIRST, 3)

    def wanted(self) -> str:
        return self.flavor(**plain.FLAVOR | {"vgpus": "= 2"})

    def other(self) -> str:
        return self.flavor(**plain.FLAVOR)

    def reserved(self) -> int:
        return self.vgpus()[1]

    def assertMade(self, count: int, host: str = "host1") -> None:
        pass

    assertDone = assertMade


class MIGTest(Operations, mig.MIGServersTestBase):
    """MIG instances, of which nothing is made either; their guests are containers"""

    WHOLE = mig.WHOLE
    MINE = mig.slots(mig.FIRST, mig.SMALL, 9, 10)
    OTHER = mig.slots(mig.FIRST, mig.LARGE, 1)
    BESIDE = mig.slots(mig.FIRST, mig.LARGE, 1)

    def wanted(self) -> str:
        return self.of_type(mig.SMALL, 2)

    def other(self) -> str:
        return self.of_type(mig.LARGE)

    def reserved(self) -> int:
        return self.vgpus()[1]

    def assertVGPUs(self, server: Server, expected: list[str], host: str = "host1") -> None:
        nodes: list[str] = []
        for each in expected:
            card, _, number = each.partition("/")
            place = of_slot(int(number.rpartition("/")[2]))
            nodes += mig.nodes_of(mig.CARDS.index(card), *place)
        self.assertInstances(server, expected, nodes, host)

    def assertMade(self, count: int, host: str = "host1") -> None:
        pass

    assertDone = assertMade

    def _rescue(self) -> None:
        said = self.refused({"rescue": {}}, self.server)
        self.assertIn("a container is not started from another disk", said[0])

    def _refuse(self) -> None:
        said = self.refused({"suspend": None}, self.server)
        self.assertIn("the state of a container cannot be saved", said[0])
        self.start_host("host2")
        live = {"os-migrateLive": {"host": "host2", "block_migration": "auto"}}
        self.assertIn("migrate the instance cold", self.refused(live, self.server)[0])


class AnotherHostTest(divided.DividedServersTestBase):
    def test_a_driver_that_makes_none(self) -> None:
        self.start_host("host1")
        self.start_host("host2")
        for address in (FIRST, SECOND):
            self.kernels["host1"].refused.add(address)
        servers = [self.boot(self.of_type(66)) for _ in range(2)]
        for server, slot in zip(servers, slots(FIRST, 66, 0) + slots(SECOND, 66, 0), strict=True):
            self.assertVGPUs(server, [slot], "host2")
