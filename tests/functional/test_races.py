# SPDX-License-Identifier: Apache-2.0
"""A claim is in the database a moment after it was made; the periodic task forgets it meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from nova import exception as nova_exception
from nova.compute import manager

from nova_gpu.virt.usage import ledger
from tests.fixtures import claims
from tests.functional import alone, base


class RacesTestBase(base.GPUServersTestBase):
    HOSTS = ("host1",)

    def _between_claim_and_save(self, first: Callable[[manager.ComputeManager], None]) -> None:
        self.useFixture(claims.BetweenClaimAndSave(first))

    def assertTrackerForgot(self, compute: manager.ComputeManager) -> None:
        """Else these tests would show nothing."""
        self.assertEqual(set(), claims.claimed(compute))


class ForgottenClaimTest(alone.Alone, RacesTestBase):
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


class FailedClaimTest(alone.Alone, RacesTestBase):
    """What was claimed for a guest that is never started is free again."""

    def test_in_a_quiet_period_where_the_tracker_had_forgotten_it(self) -> None:
        def forget_and_fail(compute: manager.ComputeManager) -> None:
            compute.update_available_resource(self.context)
            self.assertTrackerForgot(compute)
            raise nova_exception.PortLimitExceeded

        self._between_claim_and_save(forget_and_fail)
        self.assertIn("network", self.boot_refused(self.gpu_flavor(8)))
        self.boot_refused(self.gpu_flavor(1))
        self.assertIn(f"A claim does not get GPU {base.ALL[0]}", self.log())
        self.period()
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)


class AnotherHostTest(RacesTestBase):
    def test_past_that_memory_the_hold_refuses_and_another_host_is_tried(self) -> None:
        self.start_host("host2")
        self.flags(claim_grace_period=1, group="gpu")
        servers: list[base.Server] = []
        lost: list[str] = []

        def overtake(compute: manager.ComputeManager) -> None:
            lost.append(compute.host)
            used = compute.driver._gpus.ledger
            self._wait_for_assert(
                lambda: self.assertEqual(frozenset(), used.now.devices(ledger.State.CLAIMED))
            )
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
