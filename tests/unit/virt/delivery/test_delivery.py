# SPDX-License-Identifier: Apache-2.0
"""What a way has that says nothing of its own, by which a new one begins."""

from __future__ import annotations

from typing import Any

import fixtures
from nova import objects
from oslotest import base

from nova_gpu.core.guest import tree
from nova_gpu.core.guest.devices import GuestDevice
from nova_gpu.core.model import GPU
from nova_gpu.core.vgpu.vgpu import Kind, Slot
from nova_gpu.host.pci import discovery, selection
from nova_gpu.virt.delivery.delivery import Delivery, Parts, WholeCards, told_of_cards
from tests.fixtures import cards, hosts

CARD = cards.card("0000:3b:00.0")
SLOT = Slot.parse("0000:3b:00.0/nvidia-63/0")


class Cards(WholeCards):
    def obstacle(self, card: GPU) -> str | None:
        return None

    def render(self, *_: Any) -> None:
        raise NotImplementedError

    def told(self, *arguments: object) -> list[GuestDevice]:
        return []

    def clean(self, card: GPU) -> bool:
        raise NotImplementedError


class Slots(Parts):
    kind = Kind.PLAIN

    @property
    def delivery(self) -> Delivery:
        return Cards()

    def is_there(self, *_: Any) -> bool:
        raise NotImplementedError

    make = give_back = moved = is_there  # type: ignore[assignment]


class DefaultsTest(base.BaseTestCase):
    def test_whole_cards_are_given_at_any_time(self) -> None:
        way = Cards()
        self.assertEqual(({}, {}), (dict(way.refused), dict(way.refused_to_all)))
        self.assertEqual({}, dict(way.in_use([CARD])))
        self.assertIsNone(way.unfit(CARD))
        self.assertIsNone(way.refuse_flavor(objects.Instance(), None))  # type: ignore[arg-type]

    def test_parts_need_neither_cleaning_nor_dividing(self) -> None:
        way = Slots()
        self.assertIsNone(way.obstacle(CARD, []))
        self.assertEqual({}, dict(way.dividers()))
        self.assertFalse(way.clean(SLOT))
        self.assertFalse(way.may_wedge)
        self.assertIsNone(way.stateless(SLOT, is_running=True))

    def test_what_each_has_to_say(self) -> None:
        for way, missing in (
            (WholeCards, {"clean", "obstacle", "render", "told"}),
            (Parts, {"delivery", "give_back", "is_there", "make", "moved"}),
        ):
            lacking = type("Lacking", (way,), {})
            self.assertEqual(missing, lacking.__abstractmethods__)
            self.assertRaises(TypeError, lacking)


class OfCardsTest(base.BaseTestCase):
    def test_links_of_cards_and_switches(self) -> None:
        host = hosts.build("switched-8", self.useFixture(fixtures.TempDir()).path)
        for bus, speed in (("04", "5.0"), ("02", "8.0"), ("01", "2.5")):
            folder = host.path(f"0000:{bus}:00.0")
            (folder / "max_link_speed").write_text(f"{speed} GT/s PCIe\n")
            (folder / "max_link_width").write_text("16\n")
        nvidia = selection.Selection.parse(["10de"], [], [])
        found = discovery.discover(host.roots, nvidia, {}, dict)[:2]
        planned = tree.of(found)
        assert planned is not None
        one, other = told_of_cards(found, planned.places(), host.roots)
        self.assertEqual({"speed": "5.0 GT/s PCIe", "width": 16}, one["pcie"])
        self.assertIsNone(other["pcie"])
        for each in (one, other):
            assert each["switch"] is not None
            self.assertEqual({"speed": "2.5 GT/s PCIe", "width": 16}, each["switch"]["pcie"])
