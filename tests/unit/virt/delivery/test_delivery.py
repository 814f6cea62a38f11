# SPDX-License-Identifier: Apache-2.0
"""What a way has that says nothing of its own, by which a new one begins."""

from __future__ import annotations

import inspect
from typing import Any

import fixtures
from oslotest import base

from nova_gpu.core.guest import tree
from nova_gpu.core.guest.devices import GuestDevice
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.pci import discovery
from nova_gpu.virt.delivery.delivery import Delivery, Operation, described
from nova_gpu.virt.delivery.hostdev_parts import HostdevParts
from tests.fixtures import cards, hosts

CARD = cards.card("0000:3b:00.0")
SLOT = Slot.parse("0000:3b:00.0/nvidia-63/0")


class Cards(Delivery):
    def render(self, *_: Any) -> list[GuestDevice]:
        return []


class DefaultsTest(base.BaseTestCase):
    def test_what_a_way_need_not_say(self) -> None:
        way = Cards()
        self.assertEqual((False, False), (way.shares_driver, way.may_wedge))
        self.assertIsNone(way.obstacle(CARD))
        self.assertEqual([], [each for each in Operation if way.unsupported(each)])
        self.assertFalse(way.clean(SLOT))

    def test_what_each_has_to_say(self) -> None:
        for way, missing in (
            (Delivery, {"render"}),
            (HostdevParts, {"_hostdev", "is_there", "moved"}),
        ):
            lacking = type("Lacking", (way,), {})
            self.assertEqual(missing, lacking.__abstractmethods__)
            self.assertRaises(TypeError, lacking)

    def test_its_size(self) -> None:
        """What whole cards and parts have in common stays small enough to be one interface."""
        methods = [name for name, each in vars(Delivery).items() if inspect.isfunction(each)]
        self.assertLessEqual(len([name for name in methods if not name.startswith("_")]), 8)


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
