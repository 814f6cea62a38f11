# SPDX-License-Identifier: Apache-2.0
"""The cheapest plan of a small fleet, by A* over all that moves can lead to."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from nova_gpu.core.planning.fleet import Fleet, Spot
from nova_gpu.core.planning.goal import Goal
from nova_gpu.core.planning.room import Room

# What is looked at, at most: seconds of one processor
MOST_STATES = 20_000
# Larger fleets would not get far with so many.
MOST_HOSTS = 12
MOST_MOVABLE = 48

Steps = Sequence[tuple[int, Spot]]
_State = tuple[tuple[int, Spot], ...]


class TooLarge(Exception):
    """No answer within the bounds"""


def search(fleet: Fleet, goal: Goal) -> Steps | None:
    """The plan with the fewest moves and, of these, the least cost; ``None`` where there is none.

    :raises TooLarge: where that would take too long
    """
    if not is_small(fleet):
        raise TooLarge
    movable = _movable(fleet)
    room = Room(fleet)
    least = goal.least(room)
    if least is None:
        return None
    alike = _alike(fleet)
    order = itertools.count()
    waiting: list[tuple[int, int, int, Steps]] = [(least, 0, next(order), ())]
    best = {_state(room, movable, alike): (0, 0)}
    while waiting:
        _, cost, _, steps = heapq.heappop(waiting)
        room.undo(0)
        for step in steps:
            room.move(*step)
        if (len(steps), cost) > best[_state(room, movable, alike)]:
            continue
        if goal.least(room) == 0:
            return steps
        tried = set()
        for number in movable:
            # Of instances that are alike on one host, it does not matter which one goes.
            if (who := (alike[number], room.spots[number])) in tried:
                continue
            tried.add(who)
            for spot in list(room.rooms(number, goal.closed())):
                way = fleet.instances[number].way
                assert way is not None
                reached = (len(steps) + 1, cost + way.cost)
                room.move(number, spot)
                state = _state(room, movable, alike)
                if reached < best.get(state, (len(steps) + 2, 0)):
                    if len(best) >= MOST_STATES:
                        raise TooLarge
                    best[state] = reached
                    if (left := goal.least(room)) is not None:
                        entry = (reached[0] + left, reached[1], next(order))
                        heapq.heappush(waiting, (*entry, (*steps, (number, spot))))
                room.undo(len(steps))
    return None


def is_small(fleet: Fleet) -> bool:
    """Whether the fleet is small enough for an exact search"""
    return len(fleet.hosts) <= MOST_HOSTS and len(_movable(fleet)) <= MOST_MOVABLE


def _movable(fleet: Fleet) -> list[int]:
    return [number for number, each in enumerate(fleet.instances) if each.way]


def _alike(fleet: Fleet) -> list[int]:
    """A number for each instance, the same for those that take and cost the same"""
    numbers: dict[object, int] = {}
    return [numbers.setdefault((each.need, each.way), len(numbers)) for each in fleet.instances]


def _state(room: Room, movable: Sequence[int], alike: Sequence[int]) -> _State:
    return tuple(sorted((alike[number], room.spots[number]) for number in movable))
