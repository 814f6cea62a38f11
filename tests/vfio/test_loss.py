# SPDX-License-Identifier: Apache-2.0
"""A card that leaves the PCI bus while a guest has it."""

from __future__ import annotations

from tests.vfio import base
from tools.vfiolab import cards


class LossTest(base.VFIOTestCase):
    def test_removed_while_assigned(self) -> None:
        server = self.cloud.boot_with(1)
        self.seen_in(server)
        functions = self.host.functions(cards.WHOLE[0])
        self.addCleanup(self.bring_back, cards.WHOLE[0])

        # The kernel asks who has it to let go, and waits: QEMU unplugs it from the guest.
        for function in functions:
            self.host.remove(function)
        self.cloud.wait_for("the card is gone", lambda: not self.host.functions(cards.WHOLE[0]))
        self.cloud._run_periodics()

        self.assertEqual("running", self.host.virsh("domstate", self.cloud.domain(server)))
        self.assertEqual((2, 0), (self.inventory()["total"], self.inventory()["reserved"]))
        other = self.cloud.boot_with(1)
        self.assertEqual(self.host.functions(cards.WHOLE[1]), self.hostdevs(other))
        self.cloud.delete(other)

        self.cloud.delete(server)
        self.cloud._run_periodics()
        self.assertEqual((2, 1), (self.inventory()["total"], self.inventory()["reserved"]))

        # Nobody could see that it is clean.
        self.bring_back(cards.WHOLE[0])
        self.cloud._run_periodics()
        self.assertEqual((2, 1), (self.inventory()["total"], self.inventory()["reserved"]))
        self.assertEqual(0, self.host.release(cards.WHOLE[0]))
        self.cloud._run_periodics()
        self.assertEqual((2, 0), (self.inventory()["total"], self.inventory()["reserved"]))
