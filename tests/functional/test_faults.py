# SPDX-License-Identifier: Apache-2.0
"""What faults say to users, and what the log says to operators."""

from __future__ import annotations

from tests.functional import base


class PlaceTest(base.GPUServersTestBase):
    leaves = {"reserved": "the card is gone"}  # noqa: RUF012

    def test_neither_host_nor_card(self) -> None:
        self.start_host()
        server = self.boot(self.gpu_flavor(1))
        self._stop_server(server)
        (address,) = self.recorded(server)
        self.hosts["host1"].remove(address)
        self.period()
        said = f"on host1: GPU {address} cannot be given: it is no longer on the PCI bus"
        (details,) = self.refused({"os-start": None}, server)
        self.assertIn(
            "a GPU cannot be given: it is no longer on the PCI bus; repair or replace the card",
            details,
        )
        self.assertNotIn(address, details)
        self.assertNotIn("host1", details)
        self.assertEqual(1, self.log().count(f"Refused to start the guest: {said}"))
