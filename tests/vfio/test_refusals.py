# SPDX-License-Identifier: Apache-2.0
"""Cards that no guest can be given, and cards that cannot be given now."""

from __future__ import annotations

from lab.vm import cards
from tests.vfio import base, host


class NotOfferedTest(base.VFIOTestCase):
    def test_strangers_in_the_group(self) -> None:
        """Behind a bridge, and beside one on ports without access control."""
        self.offer(cards.PRODUCT_ID, len(cards.WHOLE))
        self.assertEqual(len(cards.WHOLE), self.inventory()["total"])
        self.assertEqual(0, self.inventory()["reserved"])
        listed = self.host.listed()
        for card, stranger in (
            (cards.BEHIND_BRIDGE, cards.ON_BRIDGE),
            (cards.WITH_STRANGER, cards.STRANGER),
        ):
            (line,) = (each for each in listed if each.startswith(f"{card}: "))
            self.assertIn(stranger, line)

        self.assertRegex(self.cloud.refusal(self.cloud.flavor(gpus="3")), r"\b2\b")


class InUseTest(base.VFIOTestCase):
    def test_group_held_by_another_process(self) -> None:
        """vfio lets one process have a group: another host is tried, and what QEMU says of it is
        told in our words."""
        card = cards.WHOLE[0]
        self.offer(cards.PRODUCT_ID, len(cards.WHOLE))
        self.host.hold(card)
        try:
            refused = self.cloud.boot(self.cloud.flavor(gpus="= 2"), expected_state="ERROR")
            fault = self.cloud.fault(refused)
            self.cloud.delete(refused)
        finally:
            self.host.let_go(card)
        self.assertIn("retries", fault)
        reason = f"GPU {card} cannot be given: another process of the host has it open"
        self.assertIn(reason, self.cloud.compute_log())
        self.assertEqual(0, self.used())
        self.assertEqual(host.HOST_DRIVERS, self.host.drivers(cards.WHOLE[1]))
        # What that process did with it nobody knows.
        self.assertEqual([card], self.host.quarantined())
        self.assertEqual(0, self.host.release(card))
        self.offer(cards.PRODUCT_ID, len(cards.WHOLE))
        self.assertEqual(0, self.inventory()["reserved"])
