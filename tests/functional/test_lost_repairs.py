# SPDX-License-Identifier: Apache-2.0
"""Each write of a repair, lost, without an answer, refused and repeated: the next period makes it.

What a period repairs is left by a move, a rebuild or a build that failed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import fixtures
from nova import objects
from nova.scheduler.client import report

from tests.fixtures import economy
from tests.functional import (
    alone,
    base,
    kvm,
    profiled,
    test_lost_writes,
    test_recoveries,
    test_verify,
)
from tests.functional.profiled import FIRST, slots
from tests.functional.test_lost_writes import CASES, FAILURES, failing
from tests.functional.test_recoveries import GUEST

_CLIENT, _MANAGER = report.SchedulerReportClient, "nova.compute.manager.ComputeManager"
_REPAIRS = {
    "removal": (_CLIENT, "delete_allocation_for_instance", lambda *args, **kwargs: True),
    "return": (_CLIENT, "move_allocations", lambda *args, **kwargs: True),
    "migration": (objects.Migration, "save", lambda *args, **kwargs: True),
    "context": (objects.Instance, "drop_migration_context", lambda *args, **kwargs: True),
    "fault": (objects.InstanceFault, "create", lambda *args, **kwargs: True),
}


class Repairs:
    """What a period has to repair, and that write of it which fails"""

    def setUp(self: Any) -> None:
        self.useFixture(fixtures.MockPatchObject(test_lost_writes, "WRITES", self.writes()))
        super().setUp()  # type: ignore[misc]

    def writes(self) -> dict[str, Any]:
        return test_lost_writes.WRITES | _REPAIRS

    @contextlib.contextmanager
    def fails_once(self: Any, write: str, failure: Callable[..., Any]) -> Iterator[None]:
        with self.subTest(write=write, failure=failure.__name__):
            # A move is looked at twice before it counts as one that was given up.
            with failing(write, failure) as failed:
                self.periods(2)
                self.assertEqual([write], failed)
            self.periods(2)
            yield


class RebuildTest(Repairs, test_lost_writes.Rebuilding, base.GPUServersTestBase):
    def test_allocation(self) -> None:
        """Nova deletes that of an instance whose rebuild has failed."""
        server = self.boot(self.gpu_flavor(2))
        for write, failure in CASES:
            if write != "allocation":
                continue
            self.fail_rebuild(server)
            self.assertEqual({}, self.allocations(server))
            with self.fails_once(write, failure):
                self.assertEqual({"host1": 2}, self.allocated(server))
                self.assertInventory(used=2)
            self.perform(server, "reboot", "ACTIVE", {"type": "HARD"})


class VerifyTest(Repairs, alone.Alone, test_verify.Verifying):
    """``nova-gpu verify --repair``, which is run again or leaves the rest to a period"""

    def assertRepairedAfter(self, write: str, failure: Callable[..., Any], *, again: bool) -> None:
        with (
            self.subTest(write=write, failure=failure.__name__, again=again),
            failing(write, failure) as writes,
        ):
            self.judge(mend=True)
        self.assertEqual([write], writes)
        if again:
            self.judge(mend=True)
        else:
            self.period()
        self.assertFound()

    def test_allocation(self) -> None:
        server = self.boot(self.gpu_flavor(2))
        before = self.allocations(server)
        for write, failure in CASES:
            if write != "allocation":
                continue
            for again in (True, False):
                self.placement.delete(f"/allocations/{server['id']}")
                self.assertRepairedAfter(write, failure, again=again)
                self.assertEqual(before, self.allocations(server))

    def test_allocation_of_a_server_that_is_deleted(self) -> None:
        for failure in FAILURES:
            for again in (True, False):
                server = self.boot(self.gpu_flavor(2))
                payload = self.allocation_to_write(server)
                self._delete_server(server)
                self.placement.put(f"/allocations/{server['id']}", payload, version="1.28")
                self.assertRepairedAfter("removal", failure, again=again)
                self.assertInventory()


class EndedMoveTest(Repairs, base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.start_host()

    def test_confirmed(self) -> None:
        """nova-compute died before it removed what the migration had."""
        name = f"{_MANAGER}._delete_allocation_after_move"
        for failure in FAILURES:
            server = self._resize_server(self.boot(self.gpu_flavor(2)), self.gpu_flavor(4))
            with fixtures.MonkeyPatch(name, lambda *args, **kwargs: None):
                self.confirm(server, source="host1")
            self.assertInventory(used=6)
            with self.fails_once("removal", failure):
                self.assertInventory(used=4)
            self._delete_server(server)

    def test_given_up(self) -> None:
        """nova-compute died between the claim and the move."""
        server = self.boot(self.gpu_flavor(2))
        before = self.recorded(server)
        for write in ("return", "context", "migration"):
            for failure in FAILURES:
                lost = "nova.compute.rpcapi.ComputeAPI.resize_instance"
                with fixtures.MonkeyPatch(lost, lambda *args, **kwargs: None):
                    body = {"resize": {"flavorRef": self.gpu_flavor(4)}}
                    self.api.post_server_action(server["id"], body)
                    self._wait_for_assert(lambda: self.assertInventory(used=6))
                self.restart_host("host1")
                with self.fails_once(write, failure):
                    self.assertInventory(used=2)
                    self.assertGPUs(server, before)
                    rest = self.boot(self.gpu_flavor(6))
                self._delete_server(rest)
                self.period()


class LeftDomain(Repairs, test_recoveries.Hosts):
    def test_it_is_written(self: Any) -> None:
        """Nova leaves it at the source of a resize that failed."""
        for failure in FAILURES:
            self.server = self.boot(self.gpu_flavor(1), host="host1")
            self.fails(GUEST, resize={"flavorRef": self.gpu_flavor(2)})
            with self.fails_once("domain", failure):
                self.assertInventory(host="host1")
                self.assertEqual([], self.rendered(self.server, "host1"))
            self.sweep()

    def sweep(self: Any) -> None:
        self._delete_server(self.server)
        for domain in self._domains("host1"):
            domain.undefine()
        self.periods(2)


class LXCLeftDomainTest(LeftDomain, base.GPUServersTestBase):
    def test_its_recovery(self) -> None:
        """A hard reboot gives back what the move had claimed; it fails, and is repeated."""
        for write, failure in CASES:
            if write == "record":  # saved again by Nova, with its own save of the instance
                continue
            with self.subTest(write=write, failure=failure.__name__):
                self.server = self.boot(self.gpu_flavor(1), host="host1")
                self.fails(GUEST, resize={"flavorRef": self.gpu_flavor(2)})
                with failing(write, failure) as failed:
                    self.act(reboot={"type": "HARD"})
                    self._wait_for_server_parameter(self.server, {"OS-EXT-STS:task_state": None})
                    economy.wait_for_quiet(5)
                self.assertEqual([write], failed)
                self.periods(2)
                self.hard_reboot()
                self.periods(2)
                self.assertGPUs(self.server, self.recorded(self.server), "host2")
                self.assertInventory(used=1, host="host2")
                self.assertInventory(host="host1")
                self.sweep()


class KVMLeftDomainTest(LeftDomain, kvm.KVMServersTestBase):
    pass


class LostReasonTest(Repairs, profiled.ProfiledServersTestBase):
    def test_fault(self) -> None:
        """Nova's conductor drops why no host started the guest."""
        self.start_host("host1")
        self.connection().says = lambda xml: "cannot set up guest memory: Cannot allocate memory"
        for failure in FAILURES:
            server = self.boot(self.of_type(1155), expected_state="ERROR")
            with self.fails_once("fault", failure):
                fault = self._show_server(server)["fault"]["message"]
                self.assertIn("too little free memory for the guest", fault)
            self._delete_server(server)
        self.connection().says = lambda xml: None
        self.assertVGPUs(self.boot(self.of_type(1155)), slots(1155, FIRST[0]))
