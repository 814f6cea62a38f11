# SPDX-License-Identifier: Apache-2.0
"""Cards of an HGX board for guests of KVM. Fabric Manager is a stand-in; see its fixture."""

from __future__ import annotations

from tests.fixtures import hosts, nvfm, partitions
from tests.fixtures import nvml as machines
from tests.functional import kvm

FIRST_HALF = ["0000:86:00.0", "0000:87:00.0", "0000:b8:00.0", "0000:bb:00.0"]
SECOND_HALF = ["0000:0f:00.0", "0000:10:00.0", "0000:41:00.0", "0000:44:00.0"]


class BoardTestBase(kvm.KVMServersTestBase):
    """Each host has a board, and a Fabric Manager: ``managers``.

    ``APART``: whether its library is called in processes of their own, as in a cloud.
    """

    APART = False

    def setUp(self) -> None:
        self.managers: dict[str, nvfm.FabricManager] = {}
        super().setUp()
        self.flags(nvml=True, group="gpu")
        self.useFixture(machines.Library(*partitions.nvml_cards()))
        if not self.APART:
            self.useFixture(nvfm.AtHand())
        self.start_board("host1")

    def start_board(self, name: str) -> None:
        self.managers[name] = self.useFixture(
            nvfm.FabricManager(partitions.H100, modules=partitions.MODULES)
        )
        self.start_host(name, machine="cpu-only")
        self.kernel(name, "nvidia")
        self.period(name)
        self.assertInventory(total=8, host=name)

    def prepare(self, host: hosts.Host) -> None:
        partitions.build(host, driver="nvidia")

    def _point_options_at(self, name: str) -> None:
        super()._point_options_at(name)
        self.flags(fabric_manager_address=self.managers[name].socket, group="gpu")

    def assertActive(self, *numbers: int, host: str = "host1") -> None:
        self.assertEqual(set(numbers), self.managers[host].active)

    def delete_everything(self) -> None:
        super().delete_everything()
        for name in self.managers:
            self.period(name)
            self.assertActive(host=name)


class FabricTest(BoardTestBase):
    APART = True

    def test_a_board_and_its_guests(self) -> None:
        manager = self.managers["host1"]
        first = self.boot(self.gpu_flavor(4))
        self.assertGPUs(first, FIRST_HALF)
        self.assertActive(1)
        small = self.boot(self.gpu_flavor(1))
        self.assertActive(1, 11)
        self.assertIn("No valid host", self.boot_refused(self.gpu_flavor(3)))
        self._delete_server(small)
        self.assertActive(1)
        manager.says(lost=[2])
        self.period()
        self.assertIn("no free partition of 4 in any host", self.boot_refused(self.gpu_flavor(4)))
        self.assertIn("4 of 8 free, no free partition of 4", self.log())
        self.assertActive(1)
        manager.says()
        self.period()
        second = self.boot(self.gpu_flavor(4))
        self.assertGPUs(second, SECOND_HALF)
        self.assertActive(1, 2)
        self.assertIn("4 GPUs asked for, none free", self.boot_refused(self.gpu_flavor(4)))

        # Fabric Manager has restarted, and then nova-compute
        manager.restart()
        self.period()
        self.assertActive(1, 2)
        manager.set_active([1, 7])
        self.restart_host("host1")
        self.period()
        self.assertActive(1, 2)

        self._stop_server(second)
        self.period()
        self._start_server(second)
        self._reboot_server(second, hard=True)
        self.assertActive(1, 2)

        # It is down: nobody new gets a card, and the guests stay
        manager.says("connect -9")
        self.period()
        self.assertGPUs(second, SECOND_HALF)
        self._delete_server(first)
        manager.says()
        self.period()
        self.assertActive(2)
        self._delete_server(second)
        self.assertActive()
        self.assertInventory(total=8, used=0)
