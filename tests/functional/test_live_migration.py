# SPDX-License-Identifier: Apache-2.0
"""Guests with vGPUs that move as they run: two hosts, on which they have other vGPUs."""

from __future__ import annotations

import dataclasses
import threading
import unittest
from typing import Any, ClassVar
from unittest import mock

import fixtures
from nova.compute import manager
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_gpu.core.vgpu import vgpu
from nova_gpu.virt.usage import records
from nova_gpu.virt.verify.sources import Conflict
from tests.fixtures import economy, hosts, libvirt
from tests.functional import NOVA, divided, failing_steps, live, plain
from tests.functional.base import Server
from tests.functional.divided import FIRST, SECOND, slots

COLD = "migrate the instance cold (openstack server migrate, without --live-migration)"


class Died(BaseException):
    """In the place of the end of a process"""


class Moves(live.Moving):
    """What a kind says: which vGPUs the instance has at host1, which it gets at host2 beside a
    neighbour, and what all of host2 is."""

    MINE: ClassVar[list[str]]
    THERE: ClassVar[list[str]]
    # How many host2 has beside the neighbour's
    FREE: ClassVar[int]

    def wanted(self, count: int = 2) -> str:
        raise NotImplementedError

    def assertMade(self, count: int, host: str) -> None:
        self.assertEqual(count, len(self.kernels[host].made))

    def used(self, host: str) -> tuple[int, int]:
        """Reserved and used of the type"""
        raise NotImplementedError

    def setUp(self) -> None:
        super().setUp()
        if not self.computes:
            self.start_host()
        self.server = self.boot(self.wanted())
        self.start_there()

    def start_there(self) -> None:
        self.start_host("host2")
        self.neighbour = self.boot(self.wanted(1), host="host2")

    def assertHere(self) -> None:
        """Nothing has happened"""
        self.assertVGPUs(self.server, self.MINE, "host1")
        self.assertMade(2, "host1")
        self.assertMade(1, "host2")
        self.assertNoDomain("host2")
        self.assertEqual("host1", self.host_of(self.server))
        self.periods()
        self.assertEqual([(0, 2), (0, 1)], [self.used("host1"), self.used("host2")])
        self.assertIsNone(self.instance(self.server).migration_context)
        # And at the destination all that was free is so.
        self._delete_server(self.boot(self.wanted(self.FREE), host="host2"))

    def assertThere(self) -> None:
        self.assertVGPUs(self.server, self.THERE, "host2")
        named = self.computes["host2"].driver._gpus.ledger.now.kept_by(self.server["id"])
        self.assertEqual(sorted(self.THERE), sorted(map(str, named)))
        self.assertMade(0, "host1")
        self.assertMade(3, "host2")
        self.assertNoDomain("host1")
        self.assertEqual("host2", self.host_of(self.server))
        self.assertIsNone(self.instance(self.server).migration_context)
        self.periods()
        self.assertEqual([(0, 0), (0, 3)], [self.used("host1"), self.used("host2")])

    def assertNoDomain(self, host: str) -> None:
        self.assertRaises(fakelibvirt.libvirtError, self.domain, self.server, host)

    def name(self, slot: str) -> str:
        """Return what QEMU calls it."""
        return slot.partition("/")[0]

    def test_there_and_back(self) -> None:
        """Once QEMU is new enough, and libvirt does not refuse it in the midst"""
        with mock.patch.object(self.connection("host1"), "fakeVersion", 8000000):
            message = self.refusal_of("host2")
        self.assertIn("host host1 cannot move a running guest with vGPUs", message)
        self.assertIn("takes libvirt 8.6.0 and QEMU 8.1.0 at both ends", message)
        self.assertIn(COLD, message)
        self.refusal = live.NO_STATE.format(self.name(self.MINE[1]))
        self.during = lambda: self.assertMade(3, "host2")
        self.live_migrate(self.server, expected="failed")
        self.assertEqual(1, self.moves)
        self.assertHere()
        message = "\n".join(self.said(self.server))
        self.assertIn(
            f"vGPU {self.MINE[1]} cannot be moved: its driver on the host cannot", message
        )
        self.assertIn(COLD, message)
        self.assertIn("the guest continues on this host: vGPU", self.log())
        # Another day
        self.refusal = None
        self.live_migrate(self.server)
        self.assertThere()
        again = self.boot(self.wanted(), host="host1")
        self.assertVGPUs(again, self.MINE, "host1")
        self._delete_server(again)
        self.live_migrate(self.server, "host1")
        self.assertHere()

    def said(self, server: Server) -> list[str]:
        (request, *_) = [
            action["request_id"]
            for action in self.api.get_instance_actions(server["id"])
            if action["action"] == "live-migration"
        ]
        url = f"/servers/{server['id']}/os-instance-actions/{request}"
        events = self.api.api_get(url).body["instanceAction"]["events"]
        return [event["details"] for event in events if event["details"]]

    def refusal_of(self, host: str) -> str:
        """What the instance's owner reads; nothing is made or claimed any more."""
        message: str = self.live_migration_refused(self.server, host)
        self.assertVGPUs(self.server, self.MINE, "host1")
        self.assertMade(1, "host2")
        usage = self.computes[host].driver._gpus.ledger.now
        self.assertEqual(set(), usage.kept_by(self.server["id"]))
        self.assertIsNone(self.instance(self.server).migration_context)
        return message

    def test_the_source_ends_meanwhile(self) -> None:
        """What it leaves is given back when it is back, as the guest never left."""
        self.leaves = {"task": "Nova's destination waits for a source that has ended"}
        deaths = []

        def die(*args: Any, **kwargs: Any) -> None:
            deaths.append(args)
            raise Died

        self.during = die
        action = {"os-migrateLive": {"host": "host2", "block_migration": "auto"}}
        with mock.patch.object(manager.ComputeManager, "_rollback_live_migration", die):
            self.api.post_server_action(self.server["id"], action)
            self._wait_for_assert(lambda: self.assertEqual(2, len(deaths)))
        self.assertMade(3, "host2")
        self.restart_host("host1")
        kinds = [difference.kind for difference in self.judge("host2").differences]
        self.assertIn(Conflict.ALLOCATION_UNKNOWN, kinds)
        for _ in range(2):
            self.period("host1")
        self.period("host2")
        self.assertHere()


class MediatedTest(Moves, divided.DividedServersTestBase):
    MINE = slots(FIRST, 64, 0, 1)
    THERE = slots(FIRST, 64, 1, 2)
    FREE = 7

    def name(self, slot: str) -> str:
        return vgpu.device_uuid(self.server["id"], vgpu.Slot.parse(slot))

    def wanted(self, count: int = 2) -> str:
        return self.of_type(64, count)

    def used(self, host: str) -> tuple[int, int]:
        return self.inventories(host)[64][1:]

    def test_nobody_gets_them_meanwhile(self) -> None:
        others: list[Server] = []

        def during() -> None:
            self.assertMade(3, "host2")
            self.periods()
            self.assertMade(2, "host1")
            # The database's answer may be one from before the claim.
            gpus = self.computes["host2"].driver._gpus
            nothing = dataclasses.replace(gpus.ledger.now, records=records.Records({}))
            with mock.patch.object(gpus.ledger, "_now", nothing):
                gpus.releases.settle()
                gpus.vgpus.retries.wait()
            self.assertMade(3, "host2")
            others.append(self.boot(self.wanted(self.FREE - 2), host="host2"))
            self.boot_refused(self.wanted(1), host="host2")

        self.during = during
        self.live_migrate(self.server)
        held = self.THERE + self.recorded(self.neighbour) + self.recorded(others[0])
        self.assertEqual(len(held), len(set(held)))
        self._delete_server(others[0])
        self.assertThere()

    def test_post_copy_is_not_asked_for(self) -> None:
        """QEMU refuses it for all devices of VFIO."""
        self.flags(live_migration_permit_post_copy=True, group="libvirt")
        self.restart_host("host1")
        calls: list[int] = []
        name = "tests.fixtures.libvirt.Domain.migrateToURI3"
        move = libvirt.Domain.migrateToURI3

        def migrate(domain: Any, destination: str, params: Any, flags: int) -> None:
            calls.append(flags)
            move(domain, destination, params, flags)

        with fixtures.MonkeyPatch(name, migrate):
            self.live_migrate(self.server, "host2")
        self.assertEqual([0], [flags & fakelibvirt.VIR_MIGRATE_POSTCOPY for flags in calls])
        driver = self.computes["host1"].driver
        self.assertTrue(driver._live_migration_flags & fakelibvirt.VIR_MIGRATE_POSTCOPY)


@unittest.skipIf(NOVA < 31, "Nova before 2025.1 moves no virtual function of a running guest")
class PlainTest(Moves, plain.PlainServersTestBase):
    """Virtual functions as they are, which a vendor's variant of vfio-pci has"""

    MINE = plain.slots(FIRST, 1, 2)
    THERE = plain.slots(FIRST, 2, 3)
    FREE = 5
    DRIVER = "xe-vfio-pci"

    def prepare(self, host: hosts.Host) -> None:
        super().prepare(host)
        for card in (FIRST, SECOND):
            for function in plain.functions(card, 1, 2, 3):
                host.bind(function, self.DRIVER)

    def wanted(self, count: int = 2) -> str:
        return self.flavor(**plain.FLAVOR | {"vgpus": f"= {count}"})

    def used(self, host: str) -> tuple[int, int]:
        return self.vgpus(host)[1:]

    def assertMade(self, count: int, host: str) -> None:
        """None is made: a function is there, and who has it the other assertions say."""


class OtherTypeTest(live.Moving, divided.DividedServersTestBase):
    """A flavor that names no type, and another type at the destination"""

    def test_the_next_host_is_tried(self) -> None:
        for name, number in (("host1", 64), ("host2", 65), ("host3", 64)):
            self.flags(vgpu_types=[f"nvidia-{number}"], group="gpu")
            self.start_host(name)
        server = self.boot(self.of_each(memory_mib=">= 2048"), host="host1")
        # Nova's weigher of memory has the scheduler name the one without guests first.
        self.boot(self.flavor(), host="host3")
        self.live_migrate(server)
        self.assertIn("on host2: the guest has nvidia-64", self.log())
        self.assertVGPUs(server, slots(FIRST, 64, 0), "host3")
        self.assertEqual({65: (4, 0, 0)}, self.inventories("host2"))
        self.flags(vgpu_types=["*"], group="gpu")


class RecoveriesTest(live.Moving, divided.DividedServersTestBase):
    """What its operator or its user does in the midst of a move, and after one that failed"""

    # As in a cloud: no host hears of what fails at another one.
    CAST_AS_CALL = False
    leaves = {"task": "Nova's destination waits for a source that failed"}  # noqa: RUF012

    def setUp(self) -> None:
        super().setUp()
        self.start_host("host1")
        self.start_host("host2")
        self.server = self.boot(self.of_type(64, 2), host="host1")

    def live_migrate_failing(self, *statuses: str) -> None:
        """Return when Nova has ended the migration with one of *statuses*."""
        action = {"os-migrateLive": {"host": "host2", "block_migration": "auto"}}
        self.api.post_server_action(self.server["id"], action)
        url = f"/os-migrations?instance_uuid={self.server['id']}"

        def has_ended() -> None:
            (migration,) = self.admin_api.api_get(url).body["migrations"]
            self.assertIn(migration["status"], statuses)

        self._wait_for_assert(has_ended)
        economy.wait_for_quiet(5)

    def assertRecoveredAt(self, host: str) -> None:
        """By a hard reboot it has two vGPUs there, and nothing is left of it elsewhere."""
        self.perform(self.server, "reboot", "ACTIVE", {"type": "HARD"})
        economy.wait_for_quiet(5)
        self.periods(2)
        self.assertVGPUs(self.server, slots(FIRST, 64, 0, 1), host)
        (other,) = self.hosts.keys() - {host}
        self.assertEqual((8, 0, 0), self.inventories(other)[64])
        self.assertEqual({}, dict(self.kernels[other].made))
        self.assertRaises(fakelibvirt.libvirtError, self.domain, self.server, other)

    def test_abort(self) -> None:
        aborted = threading.Event()

        def abort(domain: Any) -> None:
            domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_CANCELLED
            aborted.set()

        def during() -> None:
            url = f"/servers/{self.server['id']}/migrations"
            (migration,) = self.admin_api.api_get(url).body["migrations"]
            self.admin_api.api_delete(f"{url}/{migration['id']}")
            aborted.wait(60)

        name = "nova.tests.fixtures.libvirt.Domain.abortJob"
        self.useFixture(fixtures.MonkeyPatch(name, abort))
        self.during = during
        self.refusal = "operation aborted: migration out job: canceled by client"
        self.live_migrate_failing("failed", "error", "cancelled")
        self.assertTrue(aborted.is_set())
        self.assertRecoveredAt("host1")

    def test_moved(self) -> None:
        """Nova 2024.1 calls it completed, and leaves it at the source with its guest's vGPUs."""
        with failing_steps.failing(f"{failing_steps.RPC}.post_live_migration_at_destination"):
            self.live_migrate_failing("completed" if NOVA == 29 else "error")
        if NOVA > 29:
            self.assertRecoveredAt("host2")
            return
        self.periods(2)
        self.assertEqual("host1", self.host_of(self.server))
        self.assertEqual("migrating", self._show_server(self.server)["OS-EXT-STS:task_state"])
        self.assertTrue(self.domain(self.server, "host2"))
        self.assertEqual(2, len(self.kernels["host2"].made))
        total, reserved, used = self.inventories("host2")[64]
        self.assertLessEqual(total - reserved - used, 8 - 2)
