# SPDX-License-Identifier: Apache-2.0
"""A card whose virtual functions its driver gives vGPU types: from the flavor to QEMU, and back.

It is the newer release's libvirt that starts guests with functions that stay with their driver, a
variant of vfio-pci (``tools/vfiolab/fakefunctions.c``). Guests see that they are QEMU's: disks.
"""

from __future__ import annotations

from typing import Any

from tests.vfio import base, benches
from tools.vfiolab import cards

HERE = benches.PAIR.hosts[0]
SEEN = "1b36:0010 010802"


class TypedFunctionsTest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        # What QEMU is told of the pretend vGPUs of the other tests: this driver saves no state.
        self.host.start_qemu_as_it_is(True)
        self.addCleanup(self.host.start_qemu_as_it_is, False)
        self.host.become_nvidias(cards.DIVIDED, "clients=2")
        self.addCleanup(self.cloud.restart_compute, HERE)
        self.addCleanup(self.host.be_own_again, cards.DIVIDED)
        self.addCleanup(self.cloud._delete_everything)
        # With [gpu]virtual_functions, which now finds a card.
        self.cloud.restart_compute(HERE)
        self.functions = self.host.parts(cards.DIVIDED)

    def test_both_in_one_guest(self) -> None:
        self.assertEqual(2, len(self.functions))
        self.assertTypes("0")
        both = self.cloud.boot(self.flavor("= 2"))
        self.assertEqual(self.functions, self.hostdevs(both))
        self.assertTypes("948")
        self.assertEqual(2, self.seen(both))
        self.cloud.delete(self.cloud.boot(self.flavor("= 1"), "ERROR"))
        self.cloud.reboot(both, "HARD")
        self.assertEqual(2, self.seen(both))
        self.assertTypes("948")
        self.cloud.delete(both)
        self.assertTypes("0")

    def flavor(self, vgpus: str) -> str:
        return str(self.cloud.flavor(vgpus=vgpus, vgpu_type="s== nvidia-948"))

    def assertTypes(self, expected: str) -> None:
        """What each function has, which all the time is NVIDIA's driver's"""
        self.assertEqual([expected] * 2, self.host.types(cards.DIVIDED))
        self.assertEqual(["nvidia"] * 2, [self.host.driver(each) for each in self.functions])

    def seen(self, server: dict[str, Any]) -> int:
        self.seen_in(server)
        return int(self.cloud.console(server).count(SEEN))
