# SPDX-License-Identifier: Apache-2.0
"""What goes wrong beside an instance, or under it, and cards that no guest can be given: an error
that names the card, and an inventory that is right before, meanwhile and afterwards."""

from __future__ import annotations

from lab.vm import cards
from tests.vfio import base, host

FIRST, SECOND = cards.WHOLE


class FaultsTest(base.VFIOTestCase):
    def assertCounts(self, *, used: int, reserved: int) -> None:
        inventory = self.inventory()
        counts = {"used": self.used(), "reserved": inventory["reserved"]}
        self.assertEqual({"used": used, "reserved": reserved}, counts)
        self.assertEqual(len(cards.WHOLE), inventory["total"])

    def test_process_of_the_host_that_has_a_card_open(self) -> None:
        pid = self.host.open_node(FIRST)
        self.addCleanup(self.cloud.restart_compute)  # else it is kept back for five minutes
        self.addCleanup(self.host.close_node)
        self.assertIn("retries", self.cloud.refusal(self.cloud.flavor(gpus="= 1")))
        self.assertRegex(self.cloud.compute_log(), rf"GPU {FIRST} was not bound.*\(pid {pid}\)")
        self.assertEqual(host.HOST_DRIVERS * 2, self.host.drivers(*cards.WHOLE))
        self.cloud._run_periodics()
        self.assertCounts(used=0, reserved=1)
        self.assertEqual(self.host.functions(SECOND), self.hostdevs(self.cloud.boot_with(1)))
        self.assertCounts(used=1, reserved=1)

    def test_guest_that_dies_and_card_that_is_not_clean(self) -> None:
        self.addCleanup(self.host.clean_with, "/usr/bin/true")
        self.host.clean_with("/usr/bin/false")
        server = self.cloud.boot_with(1)
        self.host.kill_guest(self.cloud.domain(server))
        self.cloud.wait_until(server, "SHUTOFF")
        self.cloud._run_periodics()
        self.assertCounts(used=1, reserved=0)
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(FIRST))
        self.cloud._start_server(server)
        self.assertEqual(self.host.functions(FIRST), self.hostdevs(server))
        self.assertEqual(2, len(self.seen_in(server)))

        self.cloud.delete(server)
        self.assertEqual([FIRST], self.host.quarantined())
        self.assertRegex(self.cloud.compute_log(), rf"GPU {FIRST} .*clean_command")
        self.assertCounts(used=0, reserved=1)
        self.host.clean_with("/usr/bin/true")  # it is cleaned again
        self.assertEqual(0, self.host.release(FIRST))
        self.offer(cards.PRODUCT_ID, len(cards.WHOLE))
        self.assertCounts(used=0, reserved=0)


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
            (line,) = (line for line in listed if line.startswith(f"{card}: "))
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
