# SPDX-License-Identifier: Apache-2.0
"""From a flavor to a guest with whole cards, and back to the host."""

from __future__ import annotations

import os

from lab.vm import cards
from tests.vfio import base, host


class CardsTest(base.VFIOTestCase):
    def test_both_functions_and_back(self) -> None:
        """As often as ``--rounds`` says; each guest has the card of the tenant before."""
        flavor = self.cloud.flavor(gpus="= 1", gpu_arch="s== fermi", hypervisor="s== QEMU")
        for number in range(int(os.environ.get("ROUNDS", "1"))):
            server = self.cloud.boot(flavor, project=f"tenant-{number}")

            self.assertEqual(
                {"0000:01:00.0": base.DISPLAY, "0000:01:00.1": base.AUDIO}, self.seen_in(server)
            )
            self.assertEqual(self.host.functions(cards.WHOLE[0]), self.hostdevs(server))
            self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(cards.WHOLE[0]))
            self.assertEqual(host.HOST_DRIVERS, self.host.drivers(cards.WHOLE[1]))
            self.assertEqual(1, self.used())

            self.cloud.delete(server)
            self.assertEqual(host.HOST_DRIVERS, self.host.drivers(cards.WHOLE[0]))
            self.assertEqual([None, None], self.host.overrides(cards.WHOLE[0]))
            self.assertEqual([], self.host.open_groups())
            self.assertEqual([], self.domains())
            self.assertEqual(0, self.used())

    def test_two_cards(self) -> None:
        """Both are on one root of the host: in the guest on an expander with the last bus numbers,
        its own and one behind each port."""
        words = {"gpus": "= 2", "gpu:guest_topology": "required"}
        server = self.cloud.boot(self.cloud.flavor(**words))
        expected = {
            f"0000:{bus}:00.{function}": kind
            for bus in ("fe", "ff")
            for function, kind in enumerate((base.DISPLAY, base.AUDIO))
        }
        self.assertEqual(expected, self.seen_in(server))
        held = [function for card in cards.WHOLE for function in self.host.functions(card)]
        self.assertEqual(held, self.hostdevs(server))
        self.assertEqual(2, self.used())
