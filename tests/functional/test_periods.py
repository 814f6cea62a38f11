# SPDX-License-Identifier: Apache-2.0
"""The periodic task runs while something is half done and half saved."""

from __future__ import annotations

from typing import Any

import fixtures
from oslo_utils import importutils

from tests.functional import base

MANAGER = "nova.compute.manager.ComputeManager"
TRACKER = "nova.compute.resource_tracker.ResourceTracker"


class PeriodTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host("host1")
        self.ran: list[str] = []

    def _before(self, owner: str, method: str, host: str = "host1") -> None:
        """Has a period of *host* run just before the next call of that method there."""
        original = getattr(importutils.import_class(owner), method)

        def interleaved(this: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.ran and this.host == host:
                self.ran.append(method)
                self.period(host)
                self.ran.append(f"reserved: {self.inventory(host)['reserved']}")
            return original(this, *args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(f"{owner}.{method}", interleaved))

    def assertNobodyWasAStranger(self, method: str) -> None:
        self.assertEqual([method, "reserved: 0"], self.ran)
        self.assertNotIn("Instances do not get GPU", self.log())

    def test_unshelved_and_not_saved(self) -> None:
        """What it had before stays in the database until its guest runs."""
        self.flags(shelved_offload_time=0)
        server = self.boot(self.gpu_flavor(2))
        self._shelve_server(server)
        self.boot(self.gpu_flavor(3))
        self._before(MANAGER, "_unshelve_instance_key_restore")
        server = self._unshelve_server(server)
        self.assertNobodyWasAStranger("_unshelve_instance_key_restore")
        self.assertGPUs(server, base.SECOND_SOCKET[:2])
        self.assertInventory(used=5)
        self.period()
        self.assertInventory(used=5)
        free = {*base.ALL} - {*base.FIRST_SOCKET[:3], *base.SECOND_SOCKET[:2]}
        self.assertGPUs(self.boot(self.gpu_flavor(3)), free)

    def test_evacuated_and_not_moved(self) -> None:
        server = self.boot(self.gpu_flavor(2))
        self.start_host("host2")
        self.force_down("host1")
        self._before(TRACKER, "finish_evacuation", "host2")
        server = self._evacuate_server(server, expected_host="host2")
        self.assertNobodyWasAStranger("finish_evacuation")
        self.assertInventory(used=2, host="host2")
