# SPDX-License-Identifier: Apache-2.0
"""Nova's own PCI passthrough beside ours, on one host and in one instance."""

from __future__ import annotations

import json

from lab.vm import cards
from tests.vfio import base

_NETWORK = {"vendor_id": "8086", "product_id": "10d3"}


class AliasTest(base.VFIOTestCase):
    def test_beside_a_card(self) -> None:
        """A card that ``[pci]device_spec`` also matches is Nova's alone."""
        self.cloud.flags(
            device_spec=[
                json.dumps({"address": address}) for address in (cards.NETWORK, cards.WHOLE[1])
            ],
            alias=[json.dumps({"name": "network", **_NETWORK})],
            group="pci",
        )
        self.addCleanup(self._forget)
        self.cloud.restart_compute()
        inventory = self.inventory()
        self.assertEqual(1, inventory["total"] - inventory["reserved"])

        words = {"gpus": "= 1", "pci_passthrough:alias": "network:1"}
        server = self.cloud.boot(self.cloud.flavor(**words))

        held = [cards.NETWORK, *self.host.functions(cards.WHOLE[0])]
        self.assertCountEqual(held, self.hostdevs(server))
        self.assertEqual({base.DISPLAY, base.AUDIO}, set(self.seen_in(server).values()))
        self.assertEqual("vfio-pci", self.host.driver(cards.NETWORK))
        self.cloud.delete(server)
        self.assertEqual("e1000e", self.host.driver(cards.NETWORK))

    def _forget(self) -> None:
        self.cloud.flags(device_spec=[], alias=[], group="pci")
        self.cloud._delete_everything()
        self.cloud.restart_compute()
        self.assertEqual((2, 0), (self.inventory()["total"], self.inventory()["reserved"]))
