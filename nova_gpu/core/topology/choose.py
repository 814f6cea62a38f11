# SPDX-License-Identifier: Apache-2.0
"""Which of the free GPUs an instance gets.

Sets of equally many GPUs are compared by their :data:`Cost`, and then by address. At each level of
:data:`nova_gpu.core.topology.topology.Place`, what matters most first, it has two numbers: how many
islands the set touches, and how many free GPUs there are on those that it leaves broken. So an
instance is on as few islands as can be, and takes the smallest ones that it fits, which leaves the
large ones whole for who needs them.

Where the GPUs are to be near something (:class:`Beside`), how far they are from it comes before
all that: how many of the set are not on its NUMA node, then on its root, then behind its switch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from nova_gpu.core.flavor.placement_policy import Arrangement, Topology, TopologyPolicy
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.topology import nearness, topology
from nova_gpu.core.topology.nearness import Neighbour
from nova_gpu.core.topology.topology import Cells, Place

# (islands touched, free GPUs on islands broken) of circles, NUMA nodes, PCI roots, PCIe switches
Cost = tuple[int, ...]

# What of a place the GPUs of a flavor are to share
LEVELS = {Topology.NUMA: topology.NUMA_NODE, Topology.NVLINK: topology.CIRCLE}

_NOTHING: Cost = (0, 0) * len(topology.LEVELS)

_T = TypeVar("_T", PciAddress, int)
# The best set of each size, from none to all: its cost and its members, sorted.
_Table = list[tuple[Cost, tuple[_T, ...]]]


@dataclasses.dataclass(frozen=True, slots=True)
class Beside(Generic[_T]):
    """Costs that count before the numbers of a :data:`Cost`.

    These are the number of islands of the level ``within`` that a set is on, where it may be on no
    more than need be; and how much of it is on another node, another root, behind another switch.

    ``distance``: of each free GPU, from 0 to :data:`nova_gpu.core.topology.nearness.FAR`.
    """

    distance: Mapping[_T, int]
    within: int | None = None

    def cost(self, members: Collection[_T]) -> Cost:
        """Return what *members* add, wherever they are."""
        distances: list[int] = [self.distance[member] for member in members]
        return (
            0,
            *(sum(distance >= n for distance in distances) for n in range(nearness.FAR, 0, -1)),
        )

    def of_islands(self, level: int, touched: int) -> Cost:
        """Return what so many islands of *level* add."""
        return (touched if level == self.within else 0, *[0] * nearness.FAR)


def beside(
    arrangement: Arrangement, gpus: Iterable[GPU], neighbours: Iterable[Neighbour]
) -> Beside[PciAddress] | None:
    """Return what a flavor's *arrangement* puts before all else, ``None`` where that is nothing.

    :param neighbours: what the instance has of Nova's own passthrough
    """
    wanted = nearness.wanted(arrangement.near, neighbours)
    if not wanted:
        return None
    required = arrangement.policy is TopologyPolicy.REQUIRED
    return Beside(
        {gpu.address: nearness.distance(gpu, wanted) for gpu in gpus},
        LEVELS.get(arrangement.topology) if required else None,
    )


def choose(
    free: Collection[PciAddress],
    count: int,
    places: Mapping[PciAddress, Place],
    beside: Beside[PciAddress] | None = None,
) -> tuple[PciAddress, ...]:
    """Return the best *count* of *free*, sorted.

    *places* must know every address of *free*.

    :raises ValueError: where *free* has fewer than *count*
    """
    if not 0 <= count <= len(free):
        raise ValueError(f"{count} of {len(free)} free GPUs")
    return _table(sorted(free), places, beside)[count][1]


@functools.lru_cache(maxsize=4096)
def costs(free: Cells) -> tuple[Cost, ...]:
    """Return the cost of the best set of each size, from none to all, of these free GPUs."""
    places: dict[int, Place] = {}
    for *place, count in free:
        for _ in range(count):
            places[len(places)] = tuple(place)
    return tuple(cost for cost, _ in _table(sorted(places), places))


def _table(
    members: Sequence[_T], places: Mapping[_T, Place], beside: Beside[_T] | None = None
) -> _Table[_T]:
    order = topology.nesting([places[member] for member in members])
    return _best(members, places, order, beside)


def _best(
    members: Sequence[_T],
    places: Mapping[_T, Place],
    order: Sequence[int],
    beside: Beside[_T] | None,
) -> _Table[_T]:
    """Return the costs of disjoint sets add up, and so does the order of their addresses.

    What is best for two islands together is made of what is best for each.
    """
    if not order:
        return _alike(members, beside)
    level, *deeper = order
    total = _alike((), beside)
    for island in _islands(members, places, level):
        total = _joined(total, _touched(_best(island, places, deeper, beside), level, beside))
    return total


def _alike(members: Sequence[_T], beside: Beside[_T] | None) -> _Table[_T]:
    """Return the best sets of *members* that are in one place, by their size."""
    if beside is not None:
        distance = beside.distance
        members = sorted(members, key=lambda member: (distance[member], member))
    sets = [members[:count] for count in range(len(members) + 1)]
    return [
        ((beside.cost(member) if beside else ()) + _NOTHING, tuple(sorted(member)))
        for member in sets
    ]


def _islands(
    members: Sequence[_T], places: Mapping[_T, Place], level: int
) -> Collection[Sequence[_T]]:
    islands: dict[Hashable, list[_T]] = {}
    for member in members:
        number = places[member][level]
        island = ("alone", member) if number == topology.ALONE else number
        islands.setdefault(island, []).append(member)
    return islands.values()


def _touched(table: _Table[_T], level: int, beside: Beside[_T] | None) -> _Table[_T]:
    """Return *table*, of what is inside of one island of *level*, with the cost of the island."""
    size = len(table) - 1
    result: _Table[_T] = []
    for count, (cost, members) in enumerate(table):
        touched, broken = (1, size if count < size else 0) if count else (0, 0)
        before = beside.of_islands(level, touched) if beside else ()
        result.append((_sum(cost, before + _at(level, touched, broken)), members))
    return result


def _at(level: int, touched: int, broken: int) -> Cost:
    here = 2 * level
    return (*_NOTHING[:here], touched, broken, *_NOTHING[here + 2 :])


def _joined(one: _Table[_T], other: _Table[_T]) -> _Table[_T]:
    """Return the best sets of two disjoint supplies together."""
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
