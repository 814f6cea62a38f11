# SPDX-License-Identifier: Apache-2.0
"""A guest keeps its cards, and the host keeps its hands off them, until the instance is deleted."""

from __future__ import annotations

from typing import Any

from tests.vfio import base, host
from tools.vfiolab import cards


class LifecycleTest(base.VFIOTestCase):
    def test_stopped_rebooted_and_refused(self) -> None:
        """One guest for all of it: each start costs a quarter of a minute."""
        server = self.cloud.boot_with(1)
        self.seen_in(server)
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(cards.WHOLE[0]))

        self._refused(server, {"suspend": None})

        self._reset_by_the_guest(server)

        self.cloud._stop_server(server)
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(cards.WHOLE[0]))
        self.assertEqual(1, self.used())

        self.cloud._start_server(server)
        self.assertEqual(2, len(self.seen_in(server)))

        self.cloud.reboot(server, "HARD")
        self.assertEqual(2, len(self.seen_in(server)))
        self.assertEqual(self.host.functions(cards.WHOLE[0]), self.hostdevs(server))
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(cards.WHOLE[0]))

    def _reset_by_the_guest(self, server: dict[str, Any]) -> None:
        """As a guest's reboot ends for QEMU: the machine is reset, its process and Nova go on."""
        before = self.cloud.console(server).count(base.READY)
        self.host.virsh("reset", self.cloud.domain(server))
        self.cloud.wait_for(
            "the guest is up again",
            lambda: self.cloud.console(server).count(base.READY) > before,
        )
        self.assertEqual(2, len(self.seen_in(server)))
        self.assertEqual(self.host.functions(cards.WHOLE[0]), self.hostdevs(server))
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(cards.WHOLE[0]))

    def _refused(self, server: dict[str, Any], action: dict[str, Any]) -> None:
        """And nothing has come of it, for the instance or its guest."""
        self.api.post_server_action(server["id"], action)
        self.cloud.wait_until(server, "ACTIVE")
        self.assertEqual("running", self.host.virsh("domstate", self.cloud.domain(server)))
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(cards.WHOLE[0]))

    def test_service_restart(self) -> None:
        server = self.cloud.boot_with(1)

        self.cloud.restart_compute()

        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(cards.WHOLE[0]))
        self.assertEqual((1, 0), (self.used(), self.inventory()["reserved"]))
        other = self.cloud.boot_with(1)
        self.assertEqual(self.host.functions(cards.WHOLE[1]), self.hostdevs(other))
        self.cloud.delete(server)
        self.assertEqual(host.HOST_DRIVERS, self.host.drivers(cards.WHOLE[0]))
