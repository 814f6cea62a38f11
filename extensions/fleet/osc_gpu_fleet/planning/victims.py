# SPDX-License-Identifier: Apache-2.0
"""The choice of victims: the fewest and cheapest instances whose stop or deletion makes room.

A victim makes room on its own host only, and needs no room elsewhere. So each host is examined
separately, and the results are combined.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from nova_gpu.core.scheduling import capacity
from nova_gpu.core.scheduling.capacity import Group
from osc_gpu_fleet.planning.fleet import Fleet, Instance, Need, Way
from osc_gpu_fleet.planning.room import Room

# The bound for all hosts together: some ten seconds of one processor
MOST_LOOKS = 200_000


@dataclasses.dataclass(frozen=True, slots=True)
class VictimChoice:
    """The instances that must leave their hosts, and the room without them.

    :param room: how many of the requested instances have room then, by the index of the host
    :param proven: whether it is certain that fewer victims would not do, and that no others would
        make room for more
    """

    victims: tuple[Instance, ...]
    room: Mapping[int, int]
    proven: bool

    @property
    def places(self) -> int:
        return sum(self.room.values())


# How many instances leave, their cost and their GPUs; and the instances
_Price: TypeAlias = tuple[int, int, int]
_Leaving: TypeAlias = tuple[_Price, tuple[int, ...]]
_NOBODY: _Leaving = ((0, 0, 0), ())


def choose(fleet: Fleet, need: Need, count: int, costs: Mapping[str, int]) -> VictimChoice:
    """Choose the instances that must leave for *count* more like *need* to have room.

    If *count* is impossible, room is made for as many as possible. The victims are the fewest; of
    these, those of lowest cost; and then those with the fewest GPUs.

    :param costs: the cost of each instance that may be chosen, by uuid, in order of preference
    """
    order = {uuid: number for number, uuid in enumerate(costs)}
    numbers = sorted(
        (n for n, instance in enumerate(fleet.instances) if instance.uuid in costs),
        key=lambda n: order[fleet.instances[n].uuid],
    )
    # The bound of Room is for instances that may move; here these are the candidates.
    bound = tuple(
        dataclasses.replace(instance, way=Way.COLD if instance.uuid in costs else None)
        for instance in fleet.instances
    )
    search = _Search(Room(dataclasses.replace(fleet, instances=bound)), need, count, costs)
    best: list[tuple[_Price, tuple[int, ...], Mapping[int, int]] | None]
    best = [(*_NOBODY, {}), *[None] * count]
    for host in search.room.could_have(need):
        there = [n for n in numbers if fleet.instances[n].host == fleet.hosts[host].name]
        most = best[count]
        leaving = search.leaving(host, there, most[0][0] if most else len(numbers))
        joined = list(best)
        for before, fit in itertools.product(range(count), range(1, count + 1)):
            so_far, more, at = best[before], leaving[fit], min(before + fit, count)
            if so_far is None or more is None:
                continue
            price = _sum(so_far[0], more[0])
            known = joined[at]
            if known is None or price < known[0]:
                who, room = so_far[1] + more[1], {**so_far[2], host: at - before}
                joined[at] = price, who, room
        best = joined
    _, chosen, rooms = next(number for number in reversed(best) if number)
    # The victims may make more room than counted.
    proven = search.exhaustive and fleet.is_known
    return VictimChoice(tuple(fleet.instances[number] for number in chosen), rooms, proven)


def without(fleet: Fleet, leaving: Collection[Instance]) -> Fleet:
    """Return the fleet as it is after the instances *leaving* have left their hosts."""
    hosts = []
    for host in fleet.hosts:
        groups, free = list(host.groups), dict(host.free)
        for instance in leaving:
            if instance.host == host.name:
                for group, amount in instance.held:
                    was, modules = groups[group], dict(instance.sets).get(group, ())
                    board = was.board and was.board.with_taken(was.board.taken.difference(modules))
                    groups[group] = dataclasses.replace(was, used=was.used - amount, board=board)
                _add(free, instance.need.amounts, 1)
        hosts.append(dataclasses.replace(host, free=free, groups=tuple(groups)))
    gone = {instance.uuid for instance in leaving}
    left = tuple(instance for instance in fleet.instances if instance.uuid not in gone)
    return dataclasses.replace(fleet, hosts=tuple(hosts), instances=left)


def after(fleet: Fleet, need: Need, choice: VictimChoice) -> Fleet:
    """Return the fleet as it is after the victims have left and instances took their room."""
    fleet = without(fleet, choice.victims)
    hosts = list(fleet.hosts)
    for number, count in choice.room.items():
        host = hosts[number]
        groups, free = list(host.groups), dict(host.free)
        for _ in range(count):
            for way in capacity.combinations(need.groups, groups, isolate=need.isolate)[:1]:
                counts: collections.Counter[int] = collections.Counter()
                for part, group in zip(need.groups, way, strict=True):
                    counts[group] += part.count
                for group, amount in counts.items():
                    groups[group] = _with_more(groups[group], amount)
            _add(free, need.amounts, -1)
        hosts[number] = dataclasses.replace(host, free=free, groups=tuple(groups))
    return dataclasses.replace(fleet, hosts=tuple(hosts))


def _with_more(group: Group, amount: int) -> Group:
    """Return the group as it is after one more instance took *amount* of its GPUs."""
    board = group.board
    if board and (chosen := board.choose(amount)):
        board = board.with_taken(board.taken | chosen)
    return dataclasses.replace(group, used=group.used + amount, board=board)


def _add(free: dict[str, int], amounts: Sequence[tuple[str, int]], sign: int) -> None:
    for name, amount in amounts:
        if name in free:
            free[name] += sign * amount


def _sum(one: _Price, other: _Price) -> _Price:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class _Search:
    """A search for victims; ``exhaustive`` turns false if its bound ended it."""

    def __init__(self, room: Room, need: Need, count: int, costs: Mapping[str, int]) -> None:
        self.room = room
        self.exhaustive = True
        self._need, self._count, self._costs = need, count, costs
        self._looks = 0

    def leaving(self, host: int, there: Sequence[int], most: int) -> list[_Leaving | None]:
        """Return the best set of victims on *host* by the number of instances that fit then.

        The list has an entry for 0 up to the requested count, ``None`` for one that would take
        more than *most* victims.
        """
        by_count: list[_Leaving | None] = [_NOBODY, *[None] * self._count]
        have = min(self.room.fitting(self._need, host), self._count)
        for fit in range(1, have + 1):
            by_count[fit] = _NOBODY
        for wanted in range(have + 1, self._count + 1):
            least = self.room.least_leaving(self._need, host, wanted)
            if least is None or least > most:
                break
            by_count[wanted] = self._best(host, there, wanted, least, most)
        return by_count

    def _best(
        self, host: int, there: Sequence[int], wanted: int, least: int, most: int
    ) -> _Leaving | None:
        """Return the best *least* to *most* victims for *wanted* to fit on *host*, or ``None``."""
        for size in range(least, min(most, len(there)) + 1):
            best: _Leaving | None = None
            for who in self._sets(there, size):
                if self._looks >= MOST_LOOKS:
                    self.exhaustive = False
                    return best or self._greedy(host, there, wanted)
                self._looks += 1
                price = self._price(who)
                better = best is None or price < best[0]
                if better and self.room.fitting(self._need, host, who) >= wanted:
                    best = price, who
            if best:
                return best
        return None

    def _sets(self, there: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
        """Yield the sets of *size* victims among *there*.

        Sets that differ only by victims with equal resources and cost are yielded once, with those
        that come first in *there*.
        """
        alike: dict[object, list[int]] = {}
        for number in there:
            instance = self.room.fleet.instances[number]
            like = instance.held, instance.sets, instance.need.amounts, self._costs[instance.uuid]
            alike.setdefault(like, []).append(number)

        def of(classes: Sequence[Sequence[int]], left: int) -> Iterator[tuple[int, ...]]:
            if not left:
                yield ()
            elif classes and left <= sum(map(len, classes)):
                first, *others = classes
                for many in range(min(left, len(first)), -1, -1):
                    for rest in of(others, left - many):
                        yield (*first[:many], *rest)

        yield from of(list(alike.values()), size)

    def _greedy(self, host: int, there: Sequence[int], wanted: int) -> _Leaving | None:
        """Return a set of victims from which none can be left out, ``None`` if all are not enough.

        It is found without trying all sets: the largest instances are taken until *wanted* fit,
        and those that then turn out to be unnecessary are left out again.
        """
        instances = self.room.fleet.instances
        who: tuple[int, ...] = ()
        for number in sorted(there, key=lambda n: -instances[n].gpus):
            if self.room.fitting(self._need, host, who) >= wanted:
                break
            who = (*who, number)
        if self.room.fitting(self._need, host, who) < wanted:
            return None
        for number in who:
            fewer = tuple(member for member in who if member != number)
            if self.room.fitting(self._need, host, fewer) >= wanted:
                who = fewer
        return self._price(who), who

    def _price(self, who: Sequence[int]) -> _Price:
        instances = [self.room.fleet.instances[number] for number in who]
        cost = sum(self._costs[one.uuid] for one in instances)
        return len(instances), cost, sum(one.gpus for one in instances)
