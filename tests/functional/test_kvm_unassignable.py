# SPDX-License-Identifier: Apache-2.0
"""Cards that vfio-pci has and that no guest can start with, as the kernel shows it."""

from __future__ import annotations

from tests.fixtures import ailments, hosts
from tests.functional import alone, kvm

RESERVED, RELAXABLE, SHOWN, WELL = kvm.ALL


class UnassignableTest(alone.Alone, kvm.KVMServersTestBase):
    def prepare(self, host: hosts.Host) -> None:
        host.reserve(RESERVED, "direct")
        host.reserve(RELAXABLE, "direct-relaxable")
        host.show_firmware(SHOWN)

    def test_not_offered(self) -> None:
        self.start_host()
        self.assertInventory(total=2)
        self.assertGPUs(self.boot(self.gpu_flavor(2)), [RELAXABLE, WELL])
        said = self.log()
        for card, reason in ((RESERVED, "reserves 0x00000000dd800000"), (SHOWN, "'s framebuffer")):
            self.assertRegex(said, rf"GPU {card} \(.*\) is not offered: the firmware ?{reason}")


class UnusableTest(alone.Alone, kvm.KVMServersTestBase):
    """Cards that work for nobody, whoever has them"""

    leaves = {"reserved": "they stay so"}  # noqa: RUF012

    def test_a_bar_without_a_place(self) -> None:
        self.start_host()
        ailments.leave_without_place(self.hosts["host1"], WELL)
        self.period()
        self.assertInventory(total=4, reserved=1)
        self.assertIn(f"could not assign a BAR of {WELL}", self.log())
        ailments.leave_without_place(self.hosts["host1"], SHOWN)
        self.restart_host("host1")
        self.assertInventory(total=4, reserved=2)

    def test_intels_survivability_mode(self) -> None:
        self.start_host(machine="amd-intel")
        self.assertIn("56c0", self.groups())
        card = "0000:43:00.0"
        (self.hosts["host1"].path(card) / "survivability_mode").write_text("Boot\n")
        self.period()
        self.assertIn("survivability mode", self.log())
        self.assertEqual((2, 1, 0), self.counts(self.groups()["56c0"], "PGPU"))
