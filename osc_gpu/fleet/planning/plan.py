# SPDX-License-Identifier: Apache-2.0
"""The cheapest plan that makes room for instances, empties a host, or gathers what is free.

It has the fewest moves there can be and, of all such plans, the least cost: exactly so where
``proven``, which small fleets always are. Of larger ones it is what a bounded search found, and
proven where no plan can have fewer.
"""

from __future__ import annotations

import dataclasses

from osc_gpu.fleet.planning import search
from osc_gpu.fleet.planning.fleet import Fleet, Move, Need, Plan
from osc_gpu.fleet.planning.room import Room
from osc_gpu.fleet.planning.search import Empty, Goal, Place


def place(fleet: Fleet, need: Need, count: int) -> Plan:
    """Plan room for *count* more instances, on any hosts."""
    return _plan(fleet, Place(need, count))


def drain(fleet: Fleet, host: str) -> Plan:
    """Return the plan that leaves no instance with GPUs on a host.

    Nothing is moved to it, nor back.
    """
    (number,) = (n for n, index in enumerate(fleet.hosts) if index.name == host)
    return _plan(fleet, Empty(number))


def defrag(fleet: Fleet, need: Need) -> Plan:
    """Plan room for as many instances of *need* as moves can make, by the fewest moves.

    Only ``proven`` where no moves can make one more. It is always reached, without a move where
    there is nothing to gain.
    """
    if not search.is_small(fleet):
        steps = search.gather(fleet, need)
        return Plan(_moves(fleet, steps), reached=True, proven=False)
    have = places(fleet, need)
    best = Plan((), reached=True, proven=True)
    while True:
        have += 1
        more = place(fleet, need, have)
        if not more.reached:
            return dataclasses.replace(best, proven=best.proven and more.proven)
        best = more


def places(fleet: Fleet, need: Need) -> int:
    """Return how many instances have room as it is."""
    return _places(Room(fleet), need)


def places_after(fleet: Fleet, need: Need, plan: Plan) -> int:
    """Return how many have room when a plan's moves are made."""
    room = Room(fleet)
    for move in plan.moves:
        room.move(fleet.instances.index(move.instance), move.spot)
    return _places(room, need)


def _places(room: Room, need: Need) -> int:
    return sum(room.fitting(need, host) for host in room.could_have(need))


def _plan(fleet: Fleet, goal: Goal) -> Plan:
    least = goal.least(Room(fleet))
    if least is None:
        return Plan((), reached=False, proven=fleet.is_known)
    if least == 0:
        return Plan((), reached=True, proven=True)
    # There may be more room than is counted, and a shorter plan.
    proven = fleet.is_known
    try:
        steps = search.exact(fleet, goal)
    except search.TooLarge:
        steps = search.quick(fleet, goal)
        proven = proven and steps is not None and len(steps) == least
    if steps is None:
        return Plan((), reached=False, proven=proven)
    return Plan(_moves(fleet, steps), reached=True, proven=proven)


def _moves(fleet: Fleet, steps: search.Steps) -> tuple[Move, ...]:
    room = Room(fleet)
    moves = []
    for number, spot in steps:
        instance, source = fleet.instances[number], fleet.hosts[room.spots[number].host].name
        freed = sum(count for _, count in room.spots[number].held)
        reason = f"frees {freed} of {source}"
        moves.append(Move(instance, source, fleet.hosts[spot.host].name, spot, reason))
        room.move(number, spot)
    return tuple(moves)
