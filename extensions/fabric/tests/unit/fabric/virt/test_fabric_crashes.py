# SPDX-License-Identifier: Apache-2.0
"""The service of a host with a board ends at any point."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Any

import fixtures
from nova import objects

from nova_gpu.virt.lifecycle.start import Kind
from nova_gpu_fabric.core.partitions import Partition
from tests.fixtures.bases import fuzz
from tests.fixtures.histories import Domain
from tests.fixtures.partitions import H100
from tests.unit.fabric.virt.base import FabricTestCase, VGPUs, modules


class Crash(BaseException):
    """The service ends here"""


def crash_at(number: int) -> Callable[[str], None]:
    """What passes but for one call, whose *number* this is"""
    left = itertools.count(number - 1, -1)

    def fails(when: str) -> None:
        if next(left) == 0:
            raise Crash(when)

    return fails


class CrashPointsTest(FabricTestCase):
    """The service ends before or after each effect of each road: a call of Fabric Manager, the
    reset of a card, a change of a domain. At every such point who has what is right again after
    its restart."""

    def setUp(self) -> None:
        super().setUp()
        self.fails: Callable[[str], None] = lambda when: None
        self.at_hand.fails = lambda when: self.fails(when)
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.privsep.cleaning.reset", self.reset))
        self.compute.libvirt.domains = Domains(lambda when: self.fails(when))
        self.stopped: set[str] = set()

    def reset(self, address: str) -> None:
        self.fails(f"before reset of {address}")
        self.fails(f"after reset of {address}")

    # Roads: what is there before, and then what is done

    def boots(self) -> Callable[[], None]:
        return lambda: self.then(lambda: self.boot(4))

    def boots_beside_others(self) -> Callable[[], None]:
        self.boot(1)
        self.boot(4)
        return lambda: self.then(lambda: self.boot(2))

    def boots_where_somebody_activated(self) -> Callable[[], None]:
        self.manager.set_active([0])
        return lambda: self.then(lambda: self.boot(2))

    def boots_where_one_was_not_parted(self) -> Callable[[], None]:
        guest = self.boot(8)
        self.manager.says("connect -9")
        self.compute.delete(guest)
        self.manager.says()
        return lambda: self.then(lambda: self.boot(2))

    def boots_after_fabric_manager_restarts(self) -> Callable[[], None]:
        self.boot(2)
        self.manager.restart()
        return lambda: self.then(lambda: self.boot(4))

    def is_deleted(self) -> Callable[[], None]:
        self.boot(2)
        guest = self.boot(4)
        return lambda: self.then(lambda: self.compute.delete(guest))

    def is_replaced(self) -> Callable[[], None]:
        guest = self.boot(8)

        def replace() -> None:
            self.compute.delete(guest)
            self.compute.period()
            self.boot(4)

        return replace

    def is_deleted_stopped(self) -> Callable[[], None]:
        guest = self.stop(self.boot(2))
        return lambda: self.then(lambda: self.compute.delete(guest))

    def is_started_again(self) -> Callable[[], None]:
        guest = self.stop(self.boot(4))
        return lambda: self.then(lambda: self.compute.spawn(guest, Kind.REBOOT))

    def is_started_after_the_host_has_booted(self) -> Callable[[], None]:
        guest = self.stop(self.boot(8))
        self.manager.restart()
        return lambda: self.then(lambda: self.compute.spawn(guest, Kind.REBOOT))

    def is_rebooted(self) -> Callable[[], None]:
        guest = self.boot(2)

        def reboot() -> None:
            del self.compute.libvirt.domains[guest.uuid]
            self.compute.spawn(guest, Kind.REBOOT)

        return lambda: self.then(reboot)

    def fabric_manager_restarts(self) -> Callable[[], None]:
        self.boot(4)
        self.boot(1)
        self.manager.restart()
        return self.compute.period

    def somebody_changed_what_is_active(self) -> Callable[[], None]:
        self.boot(4)
        self.manager.set_active([2, 7])
        return self.compute.restart

    def somebody_parted_a_guest(self) -> Callable[[], None]:
        self.boot(2)
        self.boot(2)
        self.manager.set_active([])
        return self.compute.period

    def then(self, action: Callable[[], object]) -> None:
        action()
        self.compute.period()

    def stop(self, guest: objects.Instance) -> objects.Instance:
        del self.compute.libvirt.domains[guest.uuid]
        self.stopped.add(guest.uuid)
        self.compute.period()
        return guest

    LEAST = 200
    ROADS: tuple[Callable[[CrashPointsTest], Callable[[], None]], ...] = (
        *(boots, boots_beside_others, boots_where_somebody_activated),
        *(boots_where_one_was_not_parted, boots_after_fabric_manager_restarts),
        *(is_deleted, is_replaced, is_deleted_stopped, is_started_again),
        *(is_started_after_the_host_has_booted, is_rebooted, fabric_manager_restarts),
        *(somebody_changed_what_is_active, somebody_parted_a_guest),
    )

    def test_each_point(self) -> None:
        points, every = 0, fuzz.examples(4, 1)
        for first, road in enumerate(self.ROADS):
            for number in itertools.count(1 + first % every, every):
                with self.subTest(f"{road.__name__} {number}"):
                    if not self.crashes_at(number, road(self)):
                        break
                points += 1
        self.assertGreaterEqual(points * every, self.LEAST)

    def crashes_at(self, number: int, action: Callable[[], None]) -> bool:
        """Whether *action* has so many points"""
        before = {*self.compute.instances}
        crashed = False
        self.fails = crash_at(number)
        try:
            action()
        except Crash:
            crashed = True
        finally:
            self.fails = lambda when: None
        if crashed:
            self.goes_on(before)
        self.truths()
        for instance in [*self.compute.instances.values()]:
            self.compute.delete(instance)
        self.compute.period()
        self.assertEqual(set(), self.manager.active)
        self.stopped.clear()
        return crashed

    def goes_on(self, before: Collection[str]) -> None:
        """Nova deletes what was being built or deleted; the service starts anew"""
        for uuid in [*self.compute.instances]:
            is_stopped = uuid in self.stopped and uuid in before
            if uuid not in self.compute.libvirt.domains and not is_stopped:
                del self.compute.instances[uuid]
        self.compute.restart()
        self.compute.period()  # as Nova has the first one before it is up

    def truths(self) -> None:
        """Guests have what they compute on; beside it what those that are stopped had may be
        joined, and nothing else."""
        running, stopped = set(), set()
        for uuid, instance in self.compute.instances.items():
            own = partition(modules(instance)).id
            (running if uuid in self.compute.libvirt.domains else stopped).add(own)
        active = self.manager.active
        self.assertEqual((running, set()), (running & active, active - running - stopped))


class Domains(dict[str, Domain]):
    """libvirt's, of which each change is two points"""

    def __init__(self, fails: Callable[[str], None]) -> None:
        super().__init__()
        self._fails = fails

    def __setitem__(self, uuid: str, domain: Domain) -> None:
        self._fails("before the domain is there")
        super().__setitem__(uuid, domain)
        self._fails("after the domain is there")

    def pop(self, uuid: str, *default: Any) -> Any:
        self._fails("before the domain is gone")
        domain = super().pop(uuid, *default)
        self._fails("after the domain is gone")
        return domain


class VGPUCrashPointsTest(VGPUs, CrashPointsTest):
    """The same with vGPUs that are all of a card each"""

    ROADS = (
        CrashPointsTest.boots_where_one_was_not_parted,
        CrashPointsTest.is_started_again,
        CrashPointsTest.fabric_manager_restarts,
    )
    LEAST = 30

    def setUp(self) -> None:
        super().setUp()
        period = self.compute.period

        def settled() -> None:
            """What was left is removed beside a period, and parted in the next."""
            period()
            if self.compute.gpus.vgpus.retries.wait():
                period()

        self.useFixture(fixtures.MockPatchObject(self.compute, "period", settled))


def partition(own: frozenset[int]) -> Partition:
    return next(partition for partition in H100 if partition.modules == own)
