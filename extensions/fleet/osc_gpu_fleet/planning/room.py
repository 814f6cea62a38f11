# SPDX-License-Identifier: Apache-2.0
"""The free resources of each host after some moves, and the hosts with room for an instance."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from nova_gpu.core.card_sets import CardSets
from nova_gpu.core.scheduling import capacity
from nova_gpu.core.scheduling.capacity import Host
from osc_gpu_fleet.planning.fleet import CountByGroup, Fleet, ModulesByGroup, Need, Spot

# If there are more combinations for one instance of several groups, only the first ones are tried.
_MOST_WAYS = 64

# By group, whose GPUs are given in exact sets
Boards = Sequence[CardSets | None]

# More GPUs than a group has
_ALL = 1 << 20


class Room:
    """The state of a fleet after some moves.

    By the index of the host, ``free`` has the number of free GPUs of each of its groups, ``boards``
    the board of each group or ``None``, ``own`` the free resources other than GPUs, by class, and
    ``on`` the instances there. Free numbers are below 0 if more is used than exists. ``spots`` has
    the spot of each instance. ``moves`` are the moves so far: the instance, the spot before, and
    the spot after.
    """

    def __init__(self, fleet: Fleet) -> None:
        index = {host.name: number for number, host in enumerate(fleet.hosts)}
        self.fleet = fleet
        self.free = [[g.total - g.reserved - g.used for g in host.groups] for host in fleet.hosts]
        self.boards = [[group.board for group in host.groups] for host in fleet.hosts]
        self.own = [dict(host.free) for host in fleet.hosts]
        self.spots = [
            Spot(index[instance.host], instance.held, instance.sets) for instance in fleet.instances
        ]
        self._first = list(self.spots)
        self.on: list[set[int]] = [set() for _ in fleet.hosts]
        for number, spot in enumerate(self.spots):
            self.on[spot.host].add(number)
        self.moves: list[tuple[int, Spot, Spot]] = []
        self._ways: dict[Need, dict[int, list[CountByGroup]]] = {}
        self._fitting: dict[object, int] = {}

    def move(self, number: int, spot: Spot) -> None:
        self.moves.append((number, self.spots[number], spot))
        self._put(number, spot)

    def undo(self, moves: int) -> None:
        """Undo the latest moves, until only the first *moves* of them are left."""
        while len(self.moves) > moves:
            number, before, _ = self.moves.pop()
            self._put(number, before)

    def _put(self, number: int, spot: Spot) -> None:
        before = self.spots[number]
        self._count(number, before, 1)
        self.on[before.host].remove(number)
        self._count(number, spot, -1)
        self.on[spot.host].add(number)
        self.spots[number] = spot

    def _count(self, number: int, spot: Spot, sign: int) -> None:
        host = self.fleet.hosts[spot.host]
        for group, count in spot.held:
            self.free[spot.host][group] += sign * count
            if spot != self._first[number]:
                for cards in self.fleet.shared.get(host.name, ()):
                    for other in cards - {group} if group in cards else ():
                        self.free[spot.host][other] += sign * _ALL
        boards = self.boards[spot.host]
        for group, modules in spot.sets:
            if board := boards[group]:
                left = board.taken.difference(modules)
                boards[group] = board.with_taken(left if sign > 0 else board.taken.union(modules))
        own = self.own[spot.host]
        for resource_class, amount in self.fleet.instances[number].need.amounts:
            # Resources that a node does not have itself, such as a disk that hosts share, do not
            # change by moves.
            if resource_class in own:
                own[resource_class] += sign * amount

    def movable(self, host: int) -> list[int]:
        """Return the indexes of the instances on *host* that may be moved."""
        return sorted(n for n in self.on[host] if self.fleet.instances[n].way)

    def spots_for(self, number: int, closed: Collection[int] = ()) -> Iterator[Spot]:
        """Yield the spots with room for the instance on other hosts that are not *closed*."""
        need, here = self.fleet.instances[number].need, self.spots[number].host
        for host, ways in self.could_have(need).items():
            own = self.own[host]
            if host == here or host in closed:
                continue
            if any(own.get(name, amount) < amount for name, amount in need.amounts):
                continue
            free = self.free[host]
            for held in ways:
                if any(free[group] < count for group, count in held):
                    continue
                if (sets := self._sets(host, held)) is not None:
                    yield Spot(host, held, sets)

    def _sets(self, host: int, held: CountByGroup) -> ModulesByGroup | None:
        """Return the modules of *held*, ``None`` if a board has no free set of that size."""
        sets = []
        for group, count in held:
            if board := self.boards[host][group]:
                if (chosen := board.choose(count)) is None:
                    return None
                sets.append((group, tuple(sorted(chosen))))
        return tuple(sets)

    def could_have(self, need: Need) -> Mapping[int, list[CountByGroup]]:
        """Return the hosts that would have room for an instance like *need* if they were empty.

        With each host come the numbers of GPUs by group that the instance could get there.
        """
        if need not in self._ways:
            ways = {n: _ways(need, host) for n, host in enumerate(self.fleet.hosts)}
            self._ways[need] = {host: those for host, those in ways.items() if those}
        return self._ways[need]

    def fitting(self, need: Need, host: int, without: Collection[int] = ()) -> int:
        """Return how many more like *need* fit on *host* after instances *without* have left."""
        free, own, boards = self.free[host], self.own[host], self.boards[host]
        if without:
            free, own, boards = list(free), dict(own), self._boards(host, without)
            for number in without:
                for group, count in self.spots[number].held:
                    free[group] += count
                for name, amount in self.fleet.instances[number].need.amounts:
                    if name in own:
                        own[name] += amount
        return self._counted(need, host, free, own, boards)

    def _boards(self, host: int, without: Collection[int]) -> list[CardSets | None]:
        """Return each group's board on *host*, or ``None``, after instances *without* have left."""
        boards = list(self.boards[host])
        for number in without:
            for group, modules in self.spots[number].sets:
                if board := boards[group]:
                    boards[group] = board.with_taken(board.taken.difference(modules))
        return boards

    def least_leaving(self, need: Need, host: int, wanted: int) -> int | None:
        """Return how many instances must at least leave *host* until *wanted* like *need* fit.

        This is a lower bound, because each resource is considered separately. Return ``None`` if
        *wanted* do not fit even after all instances that may be moved have left.
        """
        leaving = self.movable(host)
        gains: dict[object, list[int]] = {}
        for number in leaving:
            for group, count in self.spots[number].held:
                gains.setdefault(group, []).append(count)
            for name, amount in self.fleet.instances[number].need.amounts:
                gains.setdefault(name, []).append(amount)
        for gain in gains.values():
            gain.sort(reverse=True)
        # It does not matter here which instances leave: as if all sets became free.
        boards = self._boards(host, leaving)
        for count in range(len(leaving) + 1):
            free = [
                left + sum(gains.get(group, ())[:count])
                for group, left in enumerate(self.free[host])
            ]
            own = {
                name: left + sum(gains.get(name, ())[:count])
                for name, left in self.own[host].items()
            }
            there = boards if count else self.boards[host]
            if self._counted(need, host, free, own, there) >= wanted:
                return count
        return None

    def _counted(
        self, need: Need, number: int, free: Sequence[int], own: Mapping[str, int], boards: Boards
    ) -> int:
        key = (need, number, *free, *own.values(), *(board and board.taken for board in boards))
        if key not in self._fitting:
            host = self.fleet.hosts[number]
            groups = tuple(
                dataclasses.replace(group, used=group.total - group.reserved - left, board=board)
                for group, left, board in zip(host.groups, free, boards, strict=True)
            )
            left = {name: max(amount, 0) for name, amount in own.items()}
            # Placement's candidate is about the present; whether there would be one is computed
            # here.
            now = dataclasses.replace(host, candidate=True, free=left, groups=groups)
            (answer,) = capacity.answers(
                need.groups, dict(need.amounts), [now], isolate=need.isolate
            )
            self._fitting[key] = answer.instances
        return self._fitting[key]


def _ways(need: Need, host: Host) -> list[CountByGroup]:
    """Return what an instance like *need* could get of the host's groups if all GPUs were free.

    Each entry is a number of GPUs by group; there are at most 64.
    """
    if host.unusable:
        return []
    fitting = [
        [
            number
            for number, group in enumerate(host.groups)
            if capacity.fits(part, group) and group.total - group.reserved >= part.count
        ]
        for part in need.groups
    ]
    ways: dict[CountByGroup, None] = {}
    for way in itertools.islice(itertools.product(*fitting), _MOST_WAYS):
        if need.isolate and len(set(way)) < len(way):
            continue
        counts: dict[int, int] = {}
        for part, group in zip(need.groups, way, strict=True):
            counts[group] = counts.get(group, 0) + part.count
        ways[tuple(sorted(counts.items()))] = None
    return list(ways)
