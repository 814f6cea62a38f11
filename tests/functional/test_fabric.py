# SPDX-License-Identifier: Apache-2.0
"""Cards of an HGX board for guests of KVM. Fabric Manager is a stand-in; see its fixture."""

from __future__ import annotations

from tests.fixtures import hosts, nvfm, partitions
from tests.fixtures import nvml as machines
from tests.functional import kvm

FIRST_HALF = ["0000:86:00.0", "0000:87:00.0", "0000:b8:00.0", "0000:bb:00.0"]
SECOND_HALF = ["0000:0f:00.0", "0000:10:00.0", "0000:41:00.0", "0000:44:00.0"]


class FabricTest(kvm.KVMServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.flags(nvml=True, group="gpu")
        self.useFixture(machines.Library(*partitions.nvml_cards()))
        self.manager = self.useFixture(nvfm.FabricManager(partitions.H100))
        self.start_host(machine="cpu-only")
        self.stand_in = self.kernel("host1", "nvidia")
        self.period()
        self.assertInventory(total=8)

    def prepare(self, host: hosts.Host) -> None:
        partitions.build(host, driver="nvidia")

    def test_a_board_and_its_guests(self) -> None:
        first = self.boot(self.gpu_flavor(4))
        self.assertGPUs(first, FIRST_HALF)
        self.assertEqual({1}, self.manager.active)
        small = self.boot(self.gpu_flavor(1))
        self.assertEqual({1, 11}, self.manager.active)
        self.assertIn("No valid host", self.boot_refused(self.gpu_flavor(3)))
        self._delete_server(small)
        self.assertEqual({1}, self.manager.active)
        self.manager.says(lost=[2])
        self.period()
        self.assertIn("Exhausted all hosts", self.boot_refused(self.gpu_flavor(4)))
        self.assertIn("4 of 8 free, no free partition of 4", self.stdlog.logger.output)
        self.assertEqual({1}, self.manager.active)
        self.manager.says()
        self.period()
        second = self.boot(self.gpu_flavor(4))
        self.assertGPUs(second, SECOND_HALF)
        self.assertEqual({1, 2}, self.manager.active)

        # Fabric Manager restarts, and then nova-compute
        self.manager.restart()
        self.period()
        self.assertEqual({1, 2}, self.manager.active)
        self.manager.set_active([1, 7])
        self.restart_host("host1")
        self.period()
        self.assertEqual({1, 2}, self.manager.active)

        self._stop_server(second)
        self.period()
        self._start_server(second)
        self._reboot_server(second, hard=True)
        self.assertEqual({1, 2}, self.manager.active)

        # It is down: nobody new gets a card, and the guests stay
        self.manager.says("connect -9")
        self.period()
        self.assertGPUs(second, SECOND_HALF)
        self._delete_server(first)
        self.manager.says()
        self.period()
        self.assertEqual({2}, self.manager.active)
        self._delete_server(second)
        self.assertEqual(set(), self.manager.active)
        self.assertInventory(total=8, used=0)
