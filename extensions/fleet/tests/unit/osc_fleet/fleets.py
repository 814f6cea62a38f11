# SPDX-License-Identifier: Apache-2.0
"""Fleets of GPUs and who has them, made by chance, and their best plans found by trying all."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence

from nova_gpu.core.card_sets import CardSets
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.scheduling.capacity import Group, Host
from osc_gpu_fleet.planning.fleet import Fleet, Instance, ModulesByGroup, Need, Plan, Way
from tests.fixtures import card_sets

FERMI, KEPLER = "CUSTOM_GPU_ARCH_FERMI", "CUSTOM_GPU_ARCH_KEPLER"
# Half of a board of H100
BOARD = card_sets.board("1_2_3_4", "1_3", "2_4", "1", "2", "3", "4")


def need(*counts: int, trait: str = "", vcpus: int = 0, isolate: bool = False) -> Need:
    required = frozenset({trait} - {""})
    groups = tuple(GroupRequest(str(n), count, required) for n, count in enumerate(counts))
    return Need(groups, (("VCPU", vcpus),) if vcpus else (), isolate)


def host(name: str, *groups: tuple[int, int], vcpus: int | None = None, **more: object) -> Host:
    """:param groups: how many GPUs there are, and how many nobody can get; each of a kind"""
    made = tuple(
        Group(total, reserved, 0, frozenset({kind}))
        for (total, reserved), kind in zip(groups, (FERMI, KEPLER), strict=False)
    )
    free = {} if vcpus is None else {"VCPU": vcpus}
    return Host(name, unusable=None, candidate=True, free=free, groups=made, **more)  # type: ignore[arg-type]


def with_board(there: Host) -> Host:
    """The host with one instead of its first group's GPUs, none of which it keeps back"""
    _, *others = there.groups
    first = Group(4, 0, 0, frozenset({FERMI}), BOARD)
    return dataclasses.replace(there, groups=(first, *others))


def instance(
    name: str,
    on: str | Host,
    wanted: Need,
    way: Way | None = Way.COLD,
    groups: Sequence[int] = (0,),
) -> Instance:
    """:param on: the host, or its name where it has no board"""
    held = _held(wanted, groups)
    sets = () if isinstance(on, str) else _sets(on, held)
    name_of = on if isinstance(on, str) else on.name
    return Instance(name, name, name_of, wanted, tuple(held.items()), way, sets=sets or ())


def _held(wanted: Need, groups: Sequence[int]) -> dict[int, int]:
    """By group, in order"""
    held: dict[int, int] = {}
    for group, part in sorted(zip(groups, wanted.groups, strict=True), key=lambda pair: pair[0]):
        held[group] = held.get(group, 0) + part.count
    return held


def _sets(there: Host, held: dict[int, int]) -> ModulesByGroup | None:
    """What a host gives of its boards, ``None`` where it has no such set"""
    sets = []
    for group, count in held.items():
        if board := there.groups[group].board:
            if (chosen := board.choose(count)) is None:
                return None
            sets.append((group, tuple(sorted(chosen))))
    return tuple(sets)


def fleet(hosts: Sequence[Host], instances: Sequence[Instance]) -> Fleet:
    """As it is with what the instances have"""
    made = []
    for host in hosts:
        there = [one for one in instances if one.host == host.name]
        used = [sum(dict(one.held).get(n, 0) for one in there) for n in range(len(host.groups))]
        free = dict(host.free)
        for one in there:
            for resource_class, amount in one.need.amounts:
                if resource_class in free:
                    free[resource_class] -= amount
        groups = tuple(
            Group(group.total, group.reserved, count, group.traits, _board(group, n, there))
            for n, (group, count) in enumerate(zip(host.groups, used, strict=True))
        )
        made.append(Host(host.name, host.unusable, host.candidate, free, groups))
    return Fleet(tuple(made), tuple(instances))


def _board(group: Group, number: int, there: Sequence[Instance]) -> CardSets | None:
    """The group's, with what the instances have, of which no two have one card"""
    board = group.board
    if board is None:
        return None
    sets = [dict(instance.sets).get(number, ()) for instance in there]
    taken = frozenset[int]().union(*sets)
    assert len(taken) == sum(map(len, sets))
    every = board.free | board.taken
    for modules in filter(None, sets):
        alone = board.with_taken(every.difference(modules))
        assert alone.choose(len(modules)) == frozenset(modules)
    return board.with_taken(board.taken | taken)


def small(dice: random.Random) -> tuple[Fleet, Need, int]:
    """Two or three hosts, what is to be placed, and how often"""
    hosts = [
        host(
            f"host{n}",
            (dice.randint(2, 4), int(dice.random() < 0.1)),
            *[(2, 0)] * (dice.random() < 0.2),
            vcpus=dice.choice((None, 4, 6)),
        )
        for n in range(dice.randint(2, 3))
    ]
    hosts = [with_board(host) if dice.random() < 0.15 else host for host in hosts]
    hosts = [
        host if dice.random() < 0.93 else Host(host.name, "down", True, host.free, host.groups)
        for host in hosts
    ]
    instances: list[Instance] = []
    for n in range(dice.randint(1, 6)):
        wanted = _wanted(dice)
        now = fleet(hosts, instances)
        spots = [(host, ways[0]) for host in now.hosts if (ways := list(_ways(wanted, host)))]
        if spots:
            chosen, groups = dice.choice(spots)
            way = dice.choice((*Way, *Way, None))
            instances.append(instance(f"vm{n}", chosen, wanted, way, groups))
    return fleet(hosts, instances), _wanted(dice), dice.choice((1, 1, 2))


def _wanted(dice: random.Random) -> Need:
    trait = dice.choice(("", "", "", FERMI, KEPLER))
    if dice.random() < 0.1:
        return need(1, 1, trait="", vcpus=dice.randint(0, 2), isolate=dice.random() < 0.5)
    return need(dice.choice((1, 1, 2, 2, 3)), trait=trait, vcpus=dice.choice((0, 1, 2)))


def _ways(wanted: Need, there: Host) -> Iterator[tuple[int, ...]]:
    """The groups that could give each part now"""
    if there.unusable:
        return
    for name, amount in wanted.amounts:
        if there.free.get(name, amount) < amount:
            return
    for way in itertools.product(range(len(there.groups)), repeat=len(wanted.groups)):
        if wanted.isolate and len(set(way)) < len(way):
            continue
        left = [group.total - group.reserved - group.used for group in there.groups]
        kinds = []
        for part, n in zip(wanted.groups, way, strict=True):
            left[n] -= part.count
            kinds.append(part.required_traits <= there.groups[n].traits)
        if not all(kinds) or any(left[n] < 0 for n in way):
            continue
        if _sets(there, _held(wanted, way)) is not None:
            yield way


def places(now: Fleet, wanted: Need) -> int:
    """How many fit, by putting one after the other everywhere they could go"""

    def most(there: Host, more: tuple[Instance, ...]) -> int:
        (now,) = fleet([there], more).hosts
        return max(
            (
                1 + most(there, (*more, instance("new", now, wanted, None, way)))
                for way in _ways(wanted, now)
            ),
            default=0,
        )

    return sum(
        most(host, tuple(one for one in now.instances if one.host == host.name))
        for host in emptied(now).hosts
    )


def _emptied(there: Host) -> Host:
    groups = tuple(
        dataclasses.replace(
            g, used=0, board=g.board and dataclasses.replace(g.board, taken=frozenset())
        )
        for g in there.groups
    )
    return Host(there.name, there.unusable, there.candidate, there.free, groups)


def steps(now: Fleet, empty: Fleet, closed: str = "") -> Iterator[tuple[Instance, Fleet]]:
    """Each instance that may be moved, and what is then, wherever it has room"""
    for n, one in enumerate(now.instances):
        if one.way is None:
            continue
        for there in now.hosts:
            if there.name in (one.host, closed):
                continue
            for way in _ways(one.need, there):
                moved = instance(one.name, there, one.need, one.way, way)
                rest = (*now.instances[:n], moved, *now.instances[n + 1 :])
                yield one, fleet(empty.hosts, rest)


def emptied(now: Fleet) -> Fleet:
    """Its hosts without the instances that are known"""
    hosts = []
    for host in now.hosts:
        free = dict(host.free)
        for one in now.instances:
            if one.host == host.name:
                for name, amount in one.need.amounts:
                    if name in free:
                        free[name] += amount
        hosts.append(Host(host.name, host.unusable, host.candidate, free, _emptied(host).groups))
    return Fleet(tuple(hosts), ())


def fewest(
    now: Fleet, reached: Callable[[Fleet], bool], closed: str = ""
) -> tuple[int, int] | None:
    """Moves and cost of the best plan; ``None`` where there is none"""
    empty = emptied(now)
    best = {now.instances: 0}
    seen: set[tuple[Instance, ...]] = set()
    for moves in itertools.count():
        ends = [cost for instances, cost in best.items() if reached(fleet(empty.hosts, instances))]
        if ends:
            return moves, min(ends)
        seen |= best.keys()
        following: dict[tuple[Instance, ...], int] = {}
        for instances, cost in best.items():
            for one, then in steps(fleet(empty.hosts, instances), empty, closed):
                assert one.way is not None
                if then.instances not in seen:
                    paid = cost + one.way.cost
                    following[then.instances] = min(paid, following.get(then.instances, paid))
        if not following:
            return None
        best = following
    raise AssertionError


def most_places(now: Fleet, wanted: Need) -> int:
    """After whatever moves"""
    empty = emptied(now)
    seen = {now.instances}
    waiting = [now]
    for state in waiting:
        for _, then in steps(state, empty):
            if then.instances not in seen:
                seen.add(then.instances)
                waiting.append(then)
    return max(places(state, wanted) for state in waiting)


def replayed(now: Fleet, plan: Plan) -> list[Fleet]:
    """What there can be after the plan; nothing where one of its moves cannot be made.

    Placement chooses of which groups a destination gives GPUs.
    """
    empty = emptied(now)
    states = [now]
    for move in plan.moves:
        states = [
            then
            for state in states
            for one, then in steps(state, empty)
            if (one.name, one.host) == (move.instance.name, move.source)
            and _host_of(then, one.name) == move.destination
        ]
    return states


def _host_of(now: Fleet, name: str) -> str:
    (host,) = (one.host for one in now.instances if one.name == name)
    return host
