# SPDX-License-Identifier: Apache-2.0
"""From a flavor to a guest with whole cards, which it keeps until it is deleted, and back."""

from __future__ import annotations

from typing import Any

from lab.vm import cards
from tests.vfio import base, host

FIRST, SECOND = cards.WHOLE


class CardsTest(base.VFIOTestCase):
    def test_both_functions_and_back(self) -> None:
        flavor = self.cloud.flavor(gpus="= 1", gpu_arch="s== fermi", hypervisor="s== QEMU")
        server = self.cloud.boot(flavor)
        seen = {"0000:01:00.0": base.DISPLAY, "0000:01:00.1": base.AUDIO}
        self.assertEqual(seen, self.seen_in(server))
        self.assertEqual(self.host.functions(FIRST), self.hostdevs(server))
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(FIRST))
        self.assertEqual(host.HOST_DRIVERS, self.host.drivers(SECOND))
        self.assertEqual(1, self.used())

        self.cloud.delete(server)
        self.assertEqual(host.HOST_DRIVERS, self.host.drivers(FIRST))
        self.assertEqual([None, None], self.host.overrides(FIRST))
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


class LifecycleTest(base.VFIOTestCase):
    def test_stopped_rebooted_refused_and_lost(self) -> None:
        """One guest for most of it: each start costs a quarter of a minute."""
        server = self.cloud.boot_with(1)
        self.seen_in(server)
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(FIRST))

        self._refused(server, "suspend")

        self._reset_by_the_guest(server)

        self.cloud._stop_server(server)
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(FIRST))
        self.assertEqual(1, self.used())

        self.cloud._start_server(server)
        self.assertEqual(2, len(self.seen_in(server)))

        self.cloud.reboot(server, "HARD")
        self.assertEqual(2, len(self.seen_in(server)))
        self.assertEqual(self.host.functions(FIRST), self.hostdevs(server))
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(FIRST))

        other = self._service_restart(server)

        self._removed_while_assigned(other, SECOND, free=FIRST)

    def _reset_by_the_guest(self, server: dict[str, Any]) -> None:
        self.reset(server)
        self.assertEqual(2, len(self.seen_in(server)))
        self.assertEqual(self.host.functions(FIRST), self.hostdevs(server))
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(FIRST))

    def _refused(self, server: dict[str, Any], action: str) -> None:
        """And nothing has come of it, for the instance or its guest."""
        self.cloud.act(server, action, "ACTIVE")
        self.assertEqual("running", self.host.virsh("domstate", self.cloud.domain(server)))
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(FIRST))

    def _service_restart(self, server: dict[str, Any]) -> dict[str, Any]:
        """Another instance, which has got the other card since."""
        self.cloud.restart_compute()

        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(FIRST))
        self.assertEqual((1, 0), (self.used(), self.inventory()["reserved"]))
        specs = {"gpus": "= 1", "gpu:on_stop": "release"}
        other = self.cloud.boot(self.cloud.flavor(**specs))
        self.assertEqual(self.host.functions(SECOND), self.hostdevs(other))
        self.cloud._stop_server(other)
        self.assertEqual((1, []), (self.used(), self.hostdevs(other)))
        self.assertEqual(host.HOST_DRIVERS, self.host.drivers(SECOND))
        self.cloud._start_server(other)
        self.assertEqual(self.host.functions(SECOND), self.hostdevs(other))
        self.cloud.delete(server)
        self.assertEqual(host.HOST_DRIVERS, self.host.drivers(FIRST))
        return other

    def _removed_while_assigned(self, server: dict[str, Any], card: str, free: str) -> None:
        """A card that leaves the PCI bus while a guest has it; nobody has *free*."""
        self.seen_in(server)
        functions = self.host.functions(card)
        self.assertEqual(functions, self.hostdevs(server))
        self.addCleanup(self.bring_back, card)

        # The kernel asks who has it to let go, and waits: QEMU unplugs it from the guest.
        for function in functions:
            self.host.remove(function)
        self.cloud.wait_for("the card is gone", lambda: not self.host.functions(card))
        self.cloud._run_periodics()

        self.assertEqual("running", self.host.virsh("domstate", self.cloud.domain(server)))
        self.assertEqual((2, 0), (self.inventory()["total"], self.inventory()["reserved"]))
        other = self.cloud.boot_with(1)
        self.assertEqual(self.host.functions(free), self.hostdevs(other))
        self.cloud.delete(other)

        self.cloud.delete(server)
        self.cloud._run_periodics()
        self.assertEqual((2, 1), (self.inventory()["total"], self.inventory()["reserved"]))

        # It is cleaned when it is back.
        self.bring_back(card)
        self.offer(cards.PRODUCT_ID, len(cards.WHOLE))
        self.assertEqual([], self.host.quarantined())
        self.assertEqual((2, 0), (self.inventory()["total"], self.inventory()["reserved"]))
