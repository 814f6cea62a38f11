# SPDX-License-Identifier: Apache-2.0
"""Cards that no guest can be given, and cards that cannot be given now."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import nova_gpu.privsep.vfio
from nova_gpu.cmd import gpu
from nova_gpu.virt import survey
from tests.vfio import base, host
from tools.vfiolab import cards


class NotOfferedTest(base.VFIOTestCase):
    def test_strangers_in_the_group(self) -> None:
        """Behind a bridge, and beside one on ports without access control."""
        self.assertEqual(len(cards.WHOLE), self.inventory()["total"])
        self.assertEqual(0, self.inventory()["reserved"])
        listed = self._listed()
        for card, stranger in (
            (cards.BEHIND_BRIDGE, cards.ON_BRIDGE),
            (cards.WITH_STRANGER, cards.STRANGER),
        ):
            (line,) = (each for each in listed if each.startswith(f"{card}: "))
            self.assertIn(stranger, line)

        refused = self.cloud.boot(self.cloud.flavor(gpus="3"), expected_state="ERROR")
        self.assertRegex(self.cloud.fault(refused), r"\b2\b")

    def _listed(self) -> list[str]:
        """What ``nova-gpu list`` prints below its table."""
        looked = survey.Survey()
        found = [gpu.describe(card, looked.obstacle(card)) for card in looked.find()]
        return gpu.table(found).splitlines()


class InUseTest(base.VFIOTestCase):
    def test_group_held_by_another_process(self) -> None:
        """vfio lets one process have a group: another host is tried, and what QEMU says of it is
        told in our words."""
        card = cards.WHOLE[0]
        with self._held(card):
            refused = self.cloud.boot(self.cloud.flavor(gpus="= 2"), expected_state="ERROR")
            fault = self.cloud.fault(refused)
            self.cloud.delete(refused)
        self.assertIn("retries", fault)
        reason = f"GPU {card} cannot be given: another process of the host has it open"
        self.assertIn(reason, self.cloud.log.read_text())
        self.assertEqual(0, self.used())
        self.assertEqual(base.HOST_DRIVERS, host.drivers(cards.WHOLE[1]))

    @contextlib.contextmanager
    def _held(self, card: str) -> Iterator[None]:
        nova_gpu.privsep.vfio.give_to_guests(card)
        group = os.open(f"/dev/vfio/{host.group(card)}", os.O_RDWR)
        try:
            yield
        finally:
            os.close(group)
            nova_gpu.privsep.vfio.give_to_host(card)
