# SPDX-License-Identifier: Apache-2.0
"""The periodic task runs while something is half done and half saved, and forgets it."""

from __future__ import annotations

from typing import Any

import fixtures
from nova.compute import manager

from nova_gpu.virt.usage import ledger
from tests.fixtures import claims
from tests.functional import base


class RacesTest(base.GPUServersTestBase):
    HOSTS = ("host1",)

    def test_past_the_pools_memory_the_hold_refuses_and_another_host_is_tried(self) -> None:
        """A claim is in the database a moment after it was made."""
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
            self.assertEqual(set(), claims.claimed(compute), "else this shows nothing")
            servers.append(self.boot(self.gpu_flavor(2), host=compute.host))

        self.useFixture(claims.BetweenClaimAndSave(overtake))
        slow = self.boot(self.gpu_flavor(2))
        (other,) = {"host1", "host2"} - set(lost)
        self.assertGPUs(servers[0], base.FIRST_SOCKET[:2], lost[0])
        self.assertGPUs(slow, base.FIRST_SOCKET[:2], other)
        self.assertInventory(used=2, host="host1")
        self.assertInventory(used=2, host="host2")

    def test_unshelved_and_not_saved(self) -> None:
        """What it had before stays in the database until its guest runs."""
        self.flags(shelved_offload_time=0)
        server = self.boot(self.gpu_flavor(2))
        self._shelve_server(server)
        self.boot(self.gpu_flavor(3))
        reserved: list[int] = []
        restore = manager.ComputeManager._unshelve_instance_key_restore

        def after_a_period(this: Any, *args: Any, **kwargs: Any) -> Any:
            self.period()
            reserved.append(self.inventory()["reserved"])
            return restore(this, *args, **kwargs)

        name = "nova.compute.manager.ComputeManager._unshelve_instance_key_restore"
        with fixtures.MonkeyPatch(name, after_a_period):
            server = self._unshelve_server(server)
        self.assertEqual([0], reserved)
        self.assertNotIn("Instances do not get GPU", self.log())
        self.assertGPUs(server, base.SECOND_SOCKET[:2])
        self.period()
        self.assertInventory(used=5)
        free = {*base.ALL} - {*base.FIRST_SOCKET[:3], *base.SECOND_SOCKET[:2]}
        self.assertGPUs(self.boot(self.gpu_flavor(3)), free)
