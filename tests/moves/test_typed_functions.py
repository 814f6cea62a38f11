# SPDX-License-Identifier: Apache-2.0
"""A card whose virtual functions its driver gives vGPU types: from the flavor to QEMU, and back.

The functions stay with their driver, a variant of vfio-pci (``lab/vm/fakefunctions.c``). Guests see
that they are QEMU's: disks. One counts in the byte that such a function remembers: it gets no
further where that does not move.
"""

from __future__ import annotations

from typing import Any

from lab.vm import cards
from nova_gpu.conf import CONF
from tests.moves import base

HERE, THERE = base.HERE, base.THERE
SEEN = "1b36:0010 010802"


# Of a guest with a function of PCI the kernel knows no page that was not written to: all its memory
# is copied once more while it stands still.
DOWNTIME = {"live_migration_downtime": 30000, "live_migration_downtime_steps": 3}


class TypedFunctionsTest(base.MovesTestCase):
    def setUp(self) -> None:
        super().setUp()
        before = {name: CONF.libvirt[name] for name in DOWNTIME}
        self.addCleanup(self.cloud.restart_compute, HERE)
        self.addCleanup(self.cloud.flags, **before, group="libvirt")
        self.cloud.flags(**DOWNTIME, group="libvirt")
        self.become_nvidias(HERE)
        self.functions = self.host.parts(cards.DIVIDED)

    def become_nvidias(self, host: str) -> None:
        self.cloud.hosts[host].become_nvidias(cards.DIVIDED, "clients=2")
        self.addCleanup(self.cloud.hosts[host].be_own_again, cards.DIVIDED)
        self.addCleanup(self.cloud._delete_everything)
        # With [gpu]virtual_functions, which now finds a card.
        self.cloud.restart_compute(host)

    def test_both_in_one_guest_and_one_that_moves(self) -> None:
        self.assertEqual(2, len(self.functions))
        self.assertTypes("0", "0")
        both = self.cloud.boot(self.flavor("= 2"))
        self.assertEqual(self.functions, self.hostdevs(both))
        self.assertTypes("948", "948")
        self.assertEqual(2, self.seen(both))
        self.cloud.delete(self.cloud.boot(self.flavor("= 1"), "ERROR"))
        self.cloud.reboot(both, "HARD")
        self.assertEqual(2, self.seen(both))
        self.assertTypes("948", "948")
        self.cloud.delete(both)
        self.assertTypes("0", "0")
        self._moves()

    def _moves(self) -> None:
        """From the second function of a card to the first one of another"""
        first, second = self.functions
        self.addCleanup(self.cloud.restart_compute, THERE)
        self.become_nvidias(THERE)
        one = self.flavor("= 1")
        neighbour, server = self.boot_at(HERE, one), self.boot_at(HERE, one)
        self.assertEqual([[first], [second]], [self.hostdevs(neighbour), self.hostdevs(server)])
        before = self.counted(server, HERE)

        self.live_migrate(server, THERE)

        self.assertEqual([first], self.hostdevs(server, THERE))
        self.assertTypes("948", "0", host=HERE)
        self.assertTypes("948", "0", host=THERE)
        self.assertGoesOn(before, self.counted(server, THERE))
        self.cloud.delete(server)
        self.assertTypes("0", "0", host=THERE)

    def flavor(self, vgpus: str) -> str:
        return str(self.cloud.flavor(vgpus=vgpus, vgpu_type="s== nvidia-948"))

    def assertTypes(self, *expected: str, host: str = HERE) -> None:
        """What each function has there, which all the time is NVIDIA's driver's"""
        there = self.cloud.hosts[host]
        self.assertEqual([*expected], there.types(cards.DIVIDED))
        self.assertEqual(["nvidia"] * 2, [there.driver(function) for function in self.functions])

    def seen(self, server: dict[str, Any]) -> int:
        self.seen_in(server)
        return int(self.cloud.console(server).count(SEEN))
