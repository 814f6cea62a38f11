# SPDX-License-Identifier: Apache-2.0
"""A claim is in the database a moment after it was made; the periodic task forgets it meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

import fixtures
from nova.compute import manager

from tests.functional import base


class ForgottenClaimTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host("host1")

    def _between_claim_and_save(self, first: Callable[[manager.ComputeManager], None]) -> None:
        """Has *first* run once, when an instance was claimed and before it is saved.

        ``_allocate_network`` is the first thing after the claim that saves the instance.
        """
        original = manager.ComputeManager._allocate_network
        runs = [first]

        def interleaved(self: manager.ComputeManager, *args: object, **kwargs: object) -> object:
            if runs:
                runs.pop()(self)
            return original(self, *args, **kwargs)

        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.compute.manager.ComputeManager._allocate_network", interleaved
            )
        )

    def assertTrackerForgot(self, compute: manager.ComputeManager) -> None:
        """Else these tests would show nothing."""
        for assigned in compute.rt.assigned_resources.values():
            for resources in assigned.values():
                self.assertEqual(set(), set(resources.get("PGPU", ())))

    def test_afterwards_nobody_gets_the_same(self) -> None:
        def forget(compute: manager.ComputeManager) -> None:
            compute.update_available_resource(self.context)
            self.assertTrackerForgot(compute)

        self._between_claim_and_save(forget)
        first = self.boot(self.gpu_flavor(2))
        second = self.boot(self.gpu_flavor(2))
        self.assertGPUs(first, base.FIRST_SOCKET[:2])
        self.assertGPUs(second, base.FIRST_SOCKET[2:])
        self.assertInventory(used=4)

    def test_meanwhile_the_pool_keeps_what_it_handed_out(self) -> None:
        servers: list[base.Server] = []

        def overtake(compute: manager.ComputeManager) -> None:
            compute.update_available_resource(self.context)
            self.assertTrackerForgot(compute)
            servers.append(self.boot(self.gpu_flavor(2)))

        self._between_claim_and_save(overtake)
        slow = self.boot(self.gpu_flavor(2))
        self.assertGPUs(slow, base.FIRST_SOCKET[:2])
        self.assertGPUs(servers[0], base.FIRST_SOCKET[2:])
        self.assertInventory(used=4)

    def test_past_that_memory_the_hold_refuses_and_another_host_is_tried(self) -> None:
        self.start_host("host2")
        self.flags(handed_out_timeout=1, group="gpu")
        servers: list[base.Server] = []
        lost: list[str] = []

        def overtake(compute: manager.ComputeManager) -> None:
            lost.append(compute.host)
            time.sleep(1.1)
            with self.on(compute.host):
                compute.update_available_resource(self.context)
            self.assertTrackerForgot(compute)
            servers.append(self.boot(self.gpu_flavor(2), host=compute.host))

        self._between_claim_and_save(overtake)
        slow = self.boot(self.gpu_flavor(2))
        (other,) = {"host1", "host2"} - set(lost)
        self.assertGPUs(servers[0], base.FIRST_SOCKET[:2], lost[0])
        self.assertGPUs(slow, base.FIRST_SOCKET[:2], other)
        self.assertInventory(used=2, host="host1")
        self.assertInventory(used=2, host="host2")
