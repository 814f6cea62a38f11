# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import random
import unittest
from collections.abc import Sequence

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_capacity import Order, choose
from tests.fixtures.bases import fuzz

STATES = fuzz.examples(1_000, 10_000)


def cards(*rooms: int) -> dict[PciAddress, list[Slot]]:
    """Cards on the buses 0, 1, ... with that many free slots"""
    addresses = [PciAddress(0, bus, 0, 0) for bus in range(len(rooms))]
    return {
        address: [Slot(address, "nvidia-35", number) for number in range(room)]
        for address, room in zip(addresses, rooms, strict=True)
    }


def left(rooms: Sequence[int], count: int, order: Order) -> tuple[int, ...]:
    """The room of each card after the choice"""
    chosen = choose(cards(*rooms), count, order)
    buses = [slot.parent.bus for slot in chosen]
    return tuple(room - buses.count(bus) for bus, room in enumerate(rooms))


class TableTest(unittest.TestCase):
    def test_more_than_there_is(self) -> None:
        for count in (4, -1):
            with self.subTest(count=count), self.assertRaises(ValueError):
                choose(cards(1, 2), count, Order.DEPTH_FIRST)


class BruteForceTest(unittest.TestCase):
    """Against every way to take as many of small hosts."""

    def states(self) -> list[tuple[tuple[int, ...], int]]:
        draw = random.Random(20261121)
        states = []
        for _ in range(STATES):
            rooms = tuple(draw.randint(0, 3) for _ in range(draw.randint(1, 4)))
            states.append((rooms, draw.randint(0, sum(rooms))))
        return states

    def test_depth_first_leaves_the_largest_rooms(self) -> None:
        for rooms, count in self.states():
            by_room = sorted(range(len(rooms)), key=lambda card: (rooms[card], card))
            best = min(
                _ways(rooms, count),
                key=lambda way: (
                    [-room for room in sorted(way, reverse=True)],
                    [way[card] for card in by_room],
                ),
            )
            self.assertEqual(best, left(rooms, count, Order.DEPTH_FIRST), (rooms, count))

    def test_breadth_first_leaves_rooms_as_even_as_can_be(self) -> None:
        for rooms, count in self.states():
            best = min(_ways(rooms, count), key=lambda way: (sorted(way, reverse=True), way))
            self.assertEqual(best, left(rooms, count, Order.BREADTH_FIRST), (rooms, count))

    def test_one_at_a_time_is_the_same(self) -> None:
        for rooms, count in self.states()[:500]:
            for order in Order:
                whole = choose(cards(*rooms), count, order)
                for part in range(count):
                    self.assertEqual(whole[:part], choose(cards(*rooms), part, order))


def _ways(rooms: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """What every way to take *count* leaves"""
    every = itertools.product(*(range(room + 1) for room in rooms))
    return [way for way in every if sum(rooms) - sum(way) == count]
