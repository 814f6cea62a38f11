# SPDX-License-Identifier: Apache-2.0
"""The search for a plan: complete by A* over all moves in small fleets, heuristic in large ones."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence

from osc_gpu_fleet.planning.fleet import Fleet, Need, Spot
from osc_gpu_fleet.planning.room import Room

# The bound of the exact search: seconds of one processor
MOST_STATES = 20_000
# Larger fleets would use up the bound early.
MOST_HOSTS = 12
MOST_MOVABLE = 48

# The bound of the quick search: some twenty seconds of one processor
MOST_LOOKS = 1_000_000
# The number of hosts tried for one place, of sets of instances that could leave each of them, and
# the length of a chain of instances that make room for one another.
_HOSTS = 40
_SETS = 4
_CHAIN = 2
# If there are more sets of a size, not all of them are examined.
_MOST_SETS = 2_000

Steps = Sequence[tuple[int, Spot]]
_State = tuple[tuple[int, Spot], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class RoomFor:
    """The goal that ``count`` more instances like ``need`` have room."""

    need: Need
    count: int

    def least(self, room: Room) -> int | None:
        """Return a lower bound of the moves to the goal, ``None`` if none lead there."""
        # The least number of moves on the hosts so far, by how many instances fit then
        least: list[int | None] = [0] + [None] * self.count
        for host in room.could_have(self.need):
            joined = list(least)
            for fit in range(self.count + 1):
                leaving = room.least_leaving(self.need, host, fit)
                if leaving is None:
                    break
                for before, cost in enumerate(least):
                    at = min(before + fit, self.count)
                    if cost is None:
                        continue
                    known = joined[at]
                    if known is None or cost + leaving < known:
                        joined[at] = cost + leaving
            least = joined
            if least[self.count] == 0:
                break
        return least[self.count]


@dataclasses.dataclass(frozen=True, slots=True)
class Empty:
    """The goal that no instance has GPUs of ``host``."""

    host: int

    def least(self, room: Room) -> int | None:
        """Return the number of instances there, ``None`` if one of them may not be moved."""
        there = room.on[self.host]
        return len(there) if len(room.movable(self.host)) == len(there) else None


Goal = RoomFor | Empty


class TooLarge(Exception):
    """The error that a fleet, or the exact search in it, is too large."""


def exact(fleet: Fleet, goal: Goal) -> Steps | None:
    """Return the steps of the plan with the fewest moves and, among these, the lowest cost.

    Return ``None`` if no plan reaches the goal.

    :raises TooLarge: if the fleet has too many hosts or moves for a complete search
    """
    if not is_small(fleet):
        raise TooLarge
    movable = _movable(fleet)
    room = Room(fleet)
    least = goal.least(room)
    if least is None:
        return None
    alike = _alike(fleet)
    closed = (goal.host,) if isinstance(goal, Empty) else ()
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
            # For equal instances on one host it does not matter which one moves.
            if (who := (alike[number], room.spots[number])) in tried:
                continue
            tried.add(who)
            for spot in list(room.spots_for(number, closed)):
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
    """Return whether the fleet is small enough for an exact search."""
    return len(fleet.hosts) <= MOST_HOSTS and len(_movable(fleet)) <= MOST_MOVABLE


def _movable(fleet: Fleet) -> list[int]:
    return [number for number, instance in enumerate(fleet.instances) if instance.way]


def _alike(fleet: Fleet) -> list[int]:
    """Return a number for each instance, the same for those that need the same and move alike."""
    numbers: dict[object, int] = {}
    return [
        numbers.setdefault((instance.need, instance.way), len(numbers))
        for instance in fleet.instances
    ]


def _state(room: Room, movable: Sequence[int], alike: Sequence[int]) -> _State:
    return tuple(sorted((alike[number], room.spots[number]) for number in movable))


class _Spent(Exception):
    """The error that a quick search has examined hosts as often as it may."""


def quick(fleet: Fleet, goal: Goal) -> Steps | None:
    """Return the steps of a plan with few moves, ``None`` if a bounded search finds none.

    It may examine hosts a million times in all, which takes some twenty seconds.
    """
    search = _Quick(fleet)
    try:
        if isinstance(goal, Empty):
            place = search.empty(goal)
        else:
            place = search.place(goal.need, goal.count) is None
    except _Spent:
        return None
    return search.steps() if place else None


def gather(fleet: Fleet, need: Need) -> Steps:
    """Return the steps by which a bounded search makes room for the most instances like *need*."""
    search = _Quick(fleet)
    try:
        search.place(need, None)
    except _Spent:
        search.room.undo(search.done)
    return search.steps()


class _Quick:
    """A heuristic search, which moves instances in ``room`` as it goes."""

    def __init__(self, fleet: Fleet) -> None:
        self.room = Room(fleet)
        self._looks = 0
        # The request of the goal, whose room no moved instance should take.
        self._need: Need | None = None
        # How many of the moves have led to a place.
        self.done = 0

    def steps(self) -> Steps:
        return [(number, to) for number, _, to in self.room.moves]

    def empty(self, goal: Empty) -> bool:
        there = sorted(self.room.on[goal.host], key=lambda n: -self._gpus(n))
        return all(self._move_away(number, frozenset({goal.host}), _CHAIN) for number in there)

    def place(self, need: Need, count: int | None) -> int | None:
        """Make room for *count*, or for the most; return ``None`` if *count* fit, else how many."""
        self._need = need
        hosts = list(self.room.could_have(need))
        made: frozenset[int] = frozenset()
        while True:
            have = sum(self.room.fitting(need, host) for host in hosts)
            if count is not None and have >= count:
                return None
            if (host := self._one_more(need, have, hosts, made)) is None:
                return have
            made |= {host}
            self.done = len(self.room.moves)

    def _one_more(
        self, need: Need, have: int, hosts: list[int], made: frozenset[int]
    ) -> int | None:
        """Make room for one more instance by few moves, and return the host with that room.

        Return ``None`` if no moves make room.

        :param have: how many instances have room before
        :param made: hosts with room made before, to which nothing is moved
        """
        start = len(self.room.moves)
        best: tuple[int, int, list[tuple[int, Spot]]] | None = None
        for least, host in self._by_least(need, hosts, len(hosts)):
            if best and len(best[2]) <= least:
                break
            there = self._make(need, host, made | {host}, _CHAIN)
            if there and sum(self.room.fitting(need, host) for host in hosts) > have:
                steps = [(number, to) for number, _, to in self.room.moves[start:]]
                cost = sum(self._cost(number) for number, _ in steps)
                if best is None or (len(steps), cost) < (len(best[2]), best[0]):
                    best = cost, host, steps
            self.room.undo(start)
        if best is None:
            return None
        for step in best[2]:
            self.room.move(*step)
        return best[1]

    def _by_least(self, need: Need, hosts: list[int], most: int) -> list[tuple[int, int]]:
        """Return how many must leave a host for one more, and the host, for the *most* lowest."""
        places = []
        for host in hosts:
            self._look()
            wanted = self.room.fitting(need, host) + 1
            if (least := self.room.least_leaving(need, host, wanted)) is not None:
                places.append((least, host))
        return sorted(places)[: min(most, _HOSTS)]

    def _make(self, need: Need, host: int, closed: frozenset[int], chain: int) -> bool:
        """Make room on *host* for one more like *need*, and return whether that succeeded.

        :param closed: hosts that nothing may be moved to
        :param chain: how many instances in a row may be moved to make room for the last one
        """
        start = len(self.room.moves)
        for leaving in itertools.islice(self._departures(need, host), _SETS):
            if all(self._move_away(number, closed, chain) for number in leaving):
                return True
            self.room.undo(start)
        return False

    def _departures(self, need: Need, host: int) -> Iterator[tuple[int, ...]]:
        """Yield sets of instances that make room for one more on *host*, cheap ones first."""
        wanted = self.room.fitting(need, host) + 1
        movable = sorted(self.room.movable(host), key=self._gpus, reverse=True)
        least = self.room.least_leaving(need, host, wanted)
        for size in range(len(movable) + 1 if least is None else least, len(movable) + 1):
            among = movable
            while math.comb(len(among), size) > _MOST_SETS and len(among) > size:
                among = among[:-1]
            sets = []
            for leaving in itertools.combinations(among, size):
                self._look()
                if self.room.fitting(need, host, leaving) >= wanted:
                    sets.append(leaving)
            yield from sorted(sets, key=self._trouble)

    def _trouble(self, leaving: tuple[int, ...]) -> tuple[int, ...]:
        sizes = sorted((self._gpus(number) for number in leaving), reverse=True)
        return (sum(map(self._cost, leaving)), *sizes, *leaving)

    def _move_away(self, number: int, closed: frozenset[int], chain: int) -> bool:
        """Move the instance *number* to another host, and return whether that succeeded.

        Choose the spot where the goal's instances lose the least room. If no host has room, move
        other instances first.

        :param chain: how many other instances in a row may be moved first
        """
        room = self.room
        if room.fleet.instances[number].way is None:
            return False
        best: tuple[tuple[int, int], Spot] | None = None
        for spot in room.spots_for(number, closed):
            self._look()
            taken = self._taken(number, spot), sum(room.free[spot.host])
            if best is None or taken < best[0]:
                best = taken, spot
        if best:
            room.move(number, best[1])
            return True
        if not chain:
            return False
        need = room.fleet.instances[number].need
        hosts = [host for host in room.could_have(need) if host not in closed]
        for _, host in self._by_least(need, hosts, 2 * _CHAIN):
            start = len(room.moves)
            if self._make(need, host, closed | {host}, chain - 1):
                spots = [spot for spot in room.spots_for(number, closed) if spot.host == host]
                if spots:
                    room.move(number, spots[0])
                    return True
            room.undo(start)
        return False

    def _taken(self, number: int, spot: Spot) -> int:
        """Return for how many of the goal's instances room is lost if *number* moves to *spot*."""
        if self._need is None:
            return 0
        before = self.room.fitting(self._need, spot.host)
        if not before:
            return 0
        start = len(self.room.moves)
        self.room.move(number, spot)
        after = self.room.fitting(self._need, spot.host)
        self.room.undo(start)
        return before - after

    def _gpus(self, number: int) -> int:
        return self.room.fleet.instances[number].gpus

    def _cost(self, number: int) -> int:
        way = self.room.fleet.instances[number].way
        return way.cost if way else 0

    def _look(self) -> None:
        self._looks += 1
        if self._looks > MOST_LOOKS:
            raise _Spent
