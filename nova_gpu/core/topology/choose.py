# SPDX-License-Identifier: Apache-2.0
"""The choice of an instance's GPUs among the free ones.

Sets of equally many GPUs are compared by their :data:`Cost`, and then by address. The cost has two
numbers for each level of :data:`nova_gpu.core.topology.topology.Place`, the most important level
first: the number of islands that the set touches, and the number of GPUs that remain free on these
islands. So an instance is on as few islands as possible, and takes the smallest ones that it fits,
which leaves the large ones whole for larger instances.

If the GPUs must be near the guest's cells or near another device (:class:`Beside`), the distance
precedes all of these: how many GPUs of the set are not on the node of a cell; and how many are not
on the device's NUMA node, then not on its root, then not behind its switch.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from nova_gpu.core.flavor.placement_policy import Arrangement, Topology, TopologyPolicy
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.topology import affinity, nearness, topology
from nova_gpu.core.topology.affinity import Affinity
from nova_gpu.core.topology.nearness import Neighbour
from nova_gpu.core.topology.topology import Cells, Place

# (islands touched, free GPUs on islands broken) of circles, NUMA nodes, PCI roots, PCIe switches
Cost = tuple[int, ...]

# The level of a place at which the GPUs of a flavor must be together
LEVELS = {Topology.NUMA: topology.NUMA_NODE, Topology.NVLINK: topology.CIRCLE}

_NOTHING: Cost = (0, 0) * len(topology.LEVELS)

_T = TypeVar("_T", PciAddress, int)
# The best set of each size, from 0 to all members: its cost and its members, sorted.
_Table = list[tuple[Cost, tuple[_T, ...]]]


# The distances from a device, for each of those from the cells: the cells come first.
_STEPS = nearness.FAR + 1


@dataclasses.dataclass(frozen=True, slots=True)
class Beside(Generic[_T]):
    """The places that an instance's GPUs must be near: its cells, and devices by ``gpu:near``.

    The numbers that follow from it precede those of a cost: on how many islands of the level
    ``within`` a set of GPUs is, or 0 if ``within`` is ``None``; and then for each distance, from
    the farthest to 1, how many of the GPUs are at least so far away. So a set has as many near
    GPUs as there are.

    ``distance`` is the distance of each free GPU from the cells, and among equal ones from the
    device. ``within`` is the level of the topology that the flavor requires, ``None`` if it
    requires none.
    """

    distance: Mapping[_T, int]
    within: int | None = None
    farthest: int = nearness.FAR

    def cost(self, members: Collection[_T]) -> Cost:
        """Return the numbers for *members* by their distance, with 0 islands."""
        distances: list[int] = [self.distance[member] for member in members]
        return (
            0,
            *(sum(distance >= n for distance in distances) for n in range(self.farthest, 0, -1)),
        )

    def of_islands(self, level: int, touched: int) -> Cost:
        """Return the numbers for a set on *touched* islands of *level*, without distances."""
        return (touched if level == self.within else 0, *[0] * self.farthest)


def beside(
    arrangement: Arrangement,
    gpus: Iterable[GPU],
    neighbours: Iterable[Neighbour],
    cells: Affinity | None = None,
) -> Beside[PciAddress] | None:
    """Return what the GPUs of an instance must be near, ``None`` if they may be anywhere.

    :param cells: the affinity to its cells, ``None`` if it has none
    """
    wanted = nearness.wanted(arrangement.near, neighbours)
    if not (wanted or cells):
        return None

    def distance(gpu: GPU) -> int:
        from_device = nearness.distance(gpu, wanted) if wanted else 0
        return _STEPS * (cells.distance(gpu.numa_node) if cells else 0) + from_device

    required = arrangement.policy is TopologyPolicy.REQUIRED
    return Beside(
        {gpu.address: distance(gpu) for gpu in gpus},
        LEVELS.get(arrangement.topology) if required else None,
        _STEPS * affinity.FORBIDDEN + nearness.FAR if cells else nearness.FAR,
    )


def choose(
    free: Collection[PciAddress],
    count: int,
    places: Mapping[PciAddress, Place],
    beside: Beside[PciAddress] | None = None,
) -> tuple[PciAddress, ...]:
    """Return the best set of *count* GPUs in *free*, sorted by address."""
    if not 0 <= count <= len(free):
        raise ValueError(f"cannot choose {count} of {len(free)} free GPUs")
    return _table(sorted(free), places, beside)[count][1]


@functools.lru_cache(maxsize=4096)
def costs(free: Cells) -> tuple[Cost, ...]:
    """Return the cost of the best set of each size, from 0 to all of the free GPUs."""
    places = _places(free)
    return tuple(cost for cost, _ in _table(sorted(places), places))


def rest(free: Cells, count: int) -> Cells:
    """Return *free* without the best set of *count* GPUs."""
    places = _places(free)
    for taken in _table(sorted(places), places)[count][1]:
        del places[taken]
    return tuple((*place, n) for place, n in sorted(collections.Counter(places.values()).items()))


def _places(free: Cells) -> dict[int, Place]:
    expanded = (tuple(place) for *place, count in free for _ in range(count))
    return dict(enumerate(expanded))


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
    """Return the best set of each size among *members*.

    Costs of disjoint sets add up. So the best sets over two islands together are combinations of
    the best sets of each.
    """
    if not order:
        return _alike(members, beside)
    level, *deeper = order
    total = _alike((), beside)
    for island in _islands(members, places, level):
        total = _joined(total, _touched(_best(island, places, deeper, beside), level, beside))
    return total


def _alike(members: Sequence[_T], beside: Beside[_T] | None) -> _Table[_T]:
    """Return the best set of each size among *members*, which are all in one place."""
    if beside is not None:
        distance = beside.distance
        members = sorted(members, key=lambda member: (distance[member], member))
    sets = [members[:count] for count in range(len(members) + 1)]
    return [
        ((beside.cost(chosen) if beside else ()) + _NOTHING, tuple(sorted(chosen)))
        for chosen in sets
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
    """Return *table*, of one island of *level*, with the cost of touching it added to each set."""
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
    """Return the best set of each size that consists of one set of each table."""
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
