# SPDX-License-Identifier: Apache-2.0
"""The cheapest plan that makes room for instances, empties a host, or gathers free GPUs.

The cheapest plan has the fewest moves and, among such plans, the lowest cost. For a small fleet the
search is complete, and the plan ``proven``. For a larger fleet the search is bounded, and its plan
proven only if a lower bound shows that no plan can have fewer moves.
"""

from __future__ import annotations

import collections
import dataclasses

from nova_gpu.core import names
from nova_gpu.core.scheduling import capacity
from osc_gpu_fleet.planning import search
from osc_gpu_fleet.planning.fleet import Fleet, Move, Need, Plan
from osc_gpu_fleet.planning.room import Room
from osc_gpu_fleet.planning.search import Empty, Goal, RoomFor


def place(fleet: Fleet, need: Need, count: int) -> Plan:
    """Plan the moves that make room for *count* more instances like *need*, on any hosts."""
    return _plan(fleet, RoomFor(need, count))


def drain(fleet: Fleet, host: str) -> Plan:
    """Plan moves after which no instance has GPUs of *host*. Nothing is moved to that host."""
    (number,) = (n for n, one in enumerate(fleet.hosts) if one.name == host)
    return _plan(fleet, Empty(number))


def defrag(fleet: Fleet, need: Need) -> Plan:
    """Plan the fewest moves that make room for as many instances like *need* as possible.

    The plan is ``proven`` if it is certain that no moves make room for one more. It always counts
    as ``reached``, and has no moves if none make more room.
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
    """Return how many more instances like *need* have room in all, without any move."""
    return _places(Room(fleet), need)


def places_after(fleet: Fleet, need: Need, plan: Plan) -> int:
    """Return how many more instances like *need* have room after the moves of *plan*."""
    room = Room(fleet)
    for move in plan.moves:
        room.move(fleet.instances.index(move.instance), move.spot)
    return _places(room, need)


def needed(need: Need, count: int) -> dict[str, int]:
    """Return how many GPUs *count* instances like *need* take, by resource class."""
    amounts: collections.Counter[str] = collections.Counter()
    for part in need.groups:
        amounts.update(dict.fromkeys(_classes(part.required_traits), part.count * count))
    return dict(amounts)


def held(fleet: Fleet, host: str) -> dict[str, int]:
    """Return how many GPUs the instances on *host* have, by resource class."""
    groups = {one.name: one.groups for one in fleet.hosts}[host]
    amounts: collections.Counter[str] = collections.Counter()
    for instance in fleet.instances:
        for group, count in instance.held if instance.host == host else ():
            amounts.update(dict.fromkeys(_classes(groups[group].traits), count))
    return dict(amounts)


def free(fleet: Fleet, resource_class: str, but: str | None = None) -> int:
    """Return how many GPUs are free in all hosts that take instances, without the host *but*.

    No moves between these hosts make it more.
    """
    return sum(
        max(group.total - group.reserved - group.used, 0)
        for host in fleet.hosts
        if not host.unusable and host.name != but
        for group in host.groups
        if resource_class in group.traits
    )


def fitting(fleet: Fleet, need: Need) -> int:
    """Return how many of the GPUs that :func:`free` counts *need* can have, of any class."""
    return sum(
        max(group.total - group.reserved - group.used, 0)
        for host in fleet.hosts
        if not host.unusable
        for group in host.groups
        if any(capacity.fits(part, group) for part in need.groups)
    )


def _classes(traits: frozenset[str]) -> frozenset[str]:
    """Return the resource classes, which are among *traits* in a fleet."""
    return traits & frozenset(names.RESOURCE_CLASSES)


def _places(room: Room, need: Need) -> int:
    return sum(room.fitting(need, host) for host in room.could_have(need))


def _plan(fleet: Fleet, goal: Goal) -> Plan:
    least = goal.least(Room(fleet))
    if least is None:
        return Plan((), reached=False, proven=fleet.is_known)
    if least == 0:
        return Plan((), reached=True, proven=True)
    # There may be more room than counted, and so a shorter plan.
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
