# SPDX-License-Identifier: Apache-2.0
"""Which of the free GPUs an instance gets.

Sets of equally many GPUs are compared by their :data:`Cost`, and then by address. At each level of
:data:`nova_gpu.core.topology.topology.Place`, what matters most first, it has two numbers: how many
islands the set touches, and how many free GPUs there are on those that it leaves broken. So an
instance is on as few islands as can be, and takes the smallest ones that it fits, which leaves the
large ones whole for who needs them.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

from nova_gpu.core.model import PciAddress
from nova_gpu.core.topology import topology
from nova_gpu.core.topology.topology import Cells, Place

# (islands touched, free GPUs on islands broken) of circles, NUMA nodes, PCI roots, PCIe switches
Cost = tuple[int, ...]

_NOTHING: Cost = (0, 0) * len(topology.LEVELS)

_T = TypeVar("_T", PciAddress, int)
# The best set of each size, from none to all: its cost and its members, sorted.
_Table = list[tuple[Cost, tuple[_T, ...]]]


def choose(
    free: Collection[PciAddress], count: int, places: Mapping[PciAddress, Place]
) -> tuple[PciAddress, ...]:
    """The best *count* of *free*, sorted. *places* must know every address of *free*.

    :raises ValueError: where *free* has fewer than *count*
    """
    if not 0 <= count <= len(free):
        raise ValueError(f"{count} of {len(free)} free GPUs")
    return _table(sorted(free), places)[count][1]


@functools.lru_cache(maxsize=4096)
def costs(free: Cells) -> tuple[Cost, ...]:
    """What the best sets of each size cost, from none to all, where GPUs are free like that."""
    places: dict[int, Place] = {}
    for *place, count in free:
        for _ in range(count):
            places[len(places)] = tuple(place)
    return tuple(cost for cost, _ in _table(sorted(places), places))


def _table(members: Sequence[_T], places: Mapping[_T, Place]) -> _Table[_T]:
    order = topology.nesting([places[member] for member in members])
    return _best(members, places, order)


def _best(members: Sequence[_T], places: Mapping[_T, Place], order: Sequence[int]) -> _Table[_T]:
    """The costs of disjoint sets add up, and so does the order of their addresses: what is best for
    two islands together is made of what is best for each."""
    if not order:
        return [(_NOTHING, tuple(members[:count])) for count in range(len(members) + 1)]
    level, *deeper = order
    total: _Table[_T] = [(_NOTHING, ())]
    for island in _islands(members, places, level):
        total = _joined(total, _touched(_best(island, places, deeper), level))
    return total


def _islands(
    members: Sequence[_T], places: Mapping[_T, Place], level: int
) -> Collection[Sequence[_T]]:
    found: dict[Hashable, list[_T]] = {}
    for member in members:
        number = places[member][level]
        island = ("alone", member) if number == topology.ALONE else number
        found.setdefault(island, []).append(member)
    return found.values()


def _touched(table: _Table[_T], level: int) -> _Table[_T]:
    """*table*, of what is inside of one island of *level*, with what the island itself costs."""
    size = len(table) - 1
    result: _Table[_T] = []
    for count, (cost, members) in enumerate(table):
        touched, broken = (1, size if count < size else 0) if count else (0, 0)
        result.append((_sum(cost, _at(level, touched, broken)), members))
    return result


def _at(level: int, touched: int, broken: int) -> Cost:
    here = 2 * level
    return (*_NOTHING[:here], touched, broken, *_NOTHING[here + 2 :])


def _joined(one: _Table[_T], other: _Table[_T]) -> _Table[_T]:
    """The best sets of two disjoint supplies together."""
    result: _Table[_T] = []
    for count in range(len(one) + len(other) - 1):
        first = max(0, count - len(other) + 1)
        result.append(
            min(
                (_sum(one[n][0], other[count - n][0]), _union(one[n][1], other[count - n][1]))
                for n in range(first, min(count, len(one) - 1) + 1)
            )
        )
    return result


def _sum(one: Cost, other: Cost) -> Cost:
    return tuple(map(sum, zip(one, other, strict=True)))


def _union(one: tuple[_T, ...], other: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(sorted(one + other))
