# SPDX-License-Identifier: Apache-2.0
"""What a way has that says nothing of its own, by which a new one begins."""

from __future__ import annotations

from typing import Any

from nova import objects
from oslotest import base

from nova_gpu.core.guest.devices import GuestDevice
from nova_gpu.core.model import GPU
from nova_gpu.core.vgpu.vgpu import Kind, Slot
from nova_gpu.virt.delivery.delivery import Delivery, Parts, WholeCards
from tests.fixtures import cards

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
        self.assertEqual(frozenset(), way.unbound())
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
