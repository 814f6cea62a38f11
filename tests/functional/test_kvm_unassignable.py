# SPDX-License-Identifier: Apache-2.0
"""Cards that vfio-pci has and that no guest can start with, as the kernel shows it."""

from __future__ import annotations

from tests.fixtures import hosts
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
        said = self.stdlog.logger.output
        for card, reason in ((RESERVED, "wants 0x00000000dd800000"), (SHOWN, "'s framebuffer")):
            self.assertRegex(said, rf"GPU {card} \(.*\) is not offered: the firmware ?{reason}")
