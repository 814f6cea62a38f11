# SPDX-License-Identifier: Apache-2.0
"""Cards that fall off the bus, one that an instance has and one that nobody has."""

from __future__ import annotations

from tests.lxc import base, place


class LossTest(base.LXCTestCase):
    leaves = {"reserved": "the cards are gone"}  # noqa: RUF012

    def test_an_assigned_and_a_free_card(self) -> None:
        server = self.boot_with(2)
        self.assertGPUs(server, {0, 1})
        for gpu in (0, 7):
            self._host.remove(place.GPUS[gpu])
        self._run_periodics()

        # The one is out of the pool. The other is the instance's, and hurts nobody else.
        self.assertEqual((2, 1), (self.usage(), self.reserved()))
        self.assertGPUs(server, {0, 1})
        self.assertGPUs(self.boot_with(5), range(2, 7))
        self.assertIn("none free", self.refusal(self.flavor(gpus="1")))

        # Its guest does not start without it, nor with another in its place.
        self._stop_server(server)
        self.act(server, "os-start", "SHUTOFF")
        self.assertIn("a GPU cannot be given", self.failure(server))

        self.delete(server)
        self._run_periodics()
        self.assertEqual((5, 2), (self.usage(), self.reserved()))
        self.assertGPUs(self.boot_with(1), {1})
