# SPDX-License-Identifier: Apache-2.0
"""Instances that an older Nova started keep their GPUs when their cloud is upgraded."""

from __future__ import annotations

from tests.functional import base, former


class UpgradeTest(former.FormerTestBase):
    def test_instances_and_flavors(self) -> None:
        self.start_host()
        three, two, one = (self.api.get_server(uuid) for uuid in self.former["servers"].values())
        self.assertGPUs(three, base.FIRST_SOCKET[:3])
        self.assertGPUs(two, base.SECOND_SOCKET[:2])
        self.assertEqual("SHUTOFF", one["status"])
        self.assertEqual([base.FIRST_SOCKET[3]], self.recorded(one))
        self.assertInventory(used=6)
        self._reboot_server(two, hard=True)
        self.assertGPUs(two, base.SECOND_SOCKET[:2])
        self._start_server(one)
        self.assertGPUs(one, base.FIRST_SOCKET[3:])
        flavor = self.former["flavors"]["2"]
        self.assertGPUs(self.boot(flavor), base.SECOND_SOCKET[2:])
        self.assertIn("2 GPUs asked for, none free", self.boot_refused(flavor))
        self.restart_host("host1")
        self.assertGPUs(three, base.FIRST_SOCKET[:3])
        self.assertInventory(used=8)
