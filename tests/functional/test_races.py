# SPDX-License-Identifier: Apache-2.0
"""A claim is in the database a moment after it was made; the periodic task forgets it meanwhile."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova.compute import manager
from nova.tests.functional.api import client

from nova_gpu.core.availability import Reasons
from nova_gpu.core.model import GPU
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.usage import domains, ledger
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


class FailedClaimTest(alone.Alone, RacesTestBase):
    """What was claimed for a guest that is never started is free again."""

    def test_at_once(self) -> None:
        def fail(compute: manager.ComputeManager) -> None:
            raise nova_exception.PortLimitExceeded

        self._between_claim_and_save(fail)
        self.assertIn("network", self.boot_refused(self.gpu_flavor(8)))
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)
        self.assertNotIn("A claim does not get GPU", self.log())

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

    def test_of_a_resize_in_a_quiet_period(self) -> None:
        """Nova leaves the claim of a failed move to the period as well."""
        server = self.boot(self.gpu_flavor(1))
        self.start_host("host2")
        fails = mock.patch(
            "nova.compute.rpcapi.ComputeAPI.resize_instance",
            side_effect=nova_exception.PortLimitExceeded,
        )
        with fails, contextlib.suppress(client.OpenStackApiException):
            # A cast is a call here, so that what the host raises reaches the API.
            self._resize_server(server, self.gpu_flavor(8))
        self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
        self.period("host2")
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL, "host2")


class SlowHostTest(base.GPUServersTestBase):
    HOSTS = ("host1",)

    def claim_waits(self) -> bool:
        """Whether one that is made now takes longer than any may"""
        compute = self.computes["host1"]

        def claim_one() -> None:
            tree = copy.deepcopy(compute.rt.provider_tree)
            compute.driver.update_provider_tree(tree, "host1")
            for uuid in tree.get_provider_uuids("host1"):
                for devices in tree.data(uuid).resources.values():
                    devices - set()

        claim = threading.Thread(target=claim_one, daemon=True)
        claim.start()
        claim.join(200)
        return claim.is_alive()

    def test_no_claim_waits_for_a_look_at_the_host(self) -> None:
        original = discovery.Discovery.of_card
        waited: list[bool] = []

        def of_card(this: discovery.Discovery, gpu: GPU, **how: bool) -> Reasons:
            if not waited:
                waited.append(self.claim_waits())
            return original(this, gpu, **how)

        self.useFixture(
            fixtures.MonkeyPatch("nova_gpu.virt.inventory.discovery.Discovery.of_card", of_card)
        )
        self.period()
        self.assertEqual([False], waited)

    def test_no_claim_waits_for_a_start_to_which_libvirt_does_not_answer(self) -> None:
        self.boot(self.gpu_flavor(1))
        original = domains.look
        waited: list[bool] = []

        def look(*args: Any) -> Any:
            """A domain whose XML libvirt takes its time for, as it does while its QEMU hangs"""
            waited.append(self.claim_waits())
            return original(*args)

        self.useFixture(fixtures.MonkeyPatch("nova_gpu.virt.usage.domains.look", look))
        self.boot(self.gpu_flavor(1))
        self.assertEqual({False}, set(waited))
