# SPDX-License-Identifier: Apache-2.0
"""What a way has that says nothing of its own, by which a new one begins."""

from __future__ import annotations

import fixtures
from oslotest import base

from nova_gpu.core.guest import tree
from nova_gpu.host.pci import discovery
from nova_gpu.virt.delivery.delivery import described
from tests.fixtures import cards, hosts


class OfCardsTest(base.BaseTestCase):
    def test_links_of_cards_and_switches(self) -> None:
        host = hosts.build("switched-8", self.useFixture(fixtures.TempDir()).path)
        for bus, speed in (("04", "5.0"), ("02", "8.0"), ("01", "2.5")):
            folder = host.path(f"0000:{bus}:00.0")
            (folder / "max_link_speed").write_text(f"{speed} GT/s PCIe\n")
            (folder / "max_link_width").write_text("16\n")
        found = discovery.cards_at(cards.addresses("0000:04:00.0", "0000:05:00.0"), host.roots)
        planned = tree.of(found)
        assert planned is not None
        one, other = described(found, planned.places(), host.roots)
        self.assertEqual({"speed": "5.0 GT/s PCIe", "width": 16}, one["pcie"])
        self.assertIsNone(other["pcie"])
        for each in (one, other):
            assert each["switch"] is not None
            self.assertEqual({"speed": "2.5 GT/s PCIe", "width": 16}, each["switch"]["pcie"])
