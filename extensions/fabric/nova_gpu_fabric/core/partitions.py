# SPDX-License-Identifier: Apache-2.0
"""The partitions that a board's fabric manager offers, and the choice of one for a guest.

A guest's cards can work together only if they are exactly one of these sets. The sets are few,
fixed by the board, and overlap: on HGX H100 and H200 all eight cards, two sets of four, four pairs
and each card alone. Cards are numbered by their place on the board (*module*, NVML's module id and
Fabric Manager's physical id), which is not the order of PCI addresses.

Among equally large free partitions, the one is chosen that leaves most of the large ones free, the
largest size first.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

from nova_gpu.core.card_sets import Module
from nova_gpu.core.model import PciAddress


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """One set of cards that Fabric Manager can join by the board's NVSwitches.

    ``active``: Fabric Manager has joined them. ``degraded`` are those of ``modules`` with fewer
    NVLinks than they should have. ``order`` are ``modules`` in the order of Fabric Manager's list.
    """

    id: int
    modules: frozenset[Module]
    active: bool = False
    degraded: frozenset[Module] = frozenset()
    order: tuple[Module, ...] = dataclasses.field(default=(), compare=False)

    @property
    def size(self) -> int:
        return len(self.modules)


def free(partitions: Iterable[Partition], taken: Collection[Module]) -> list[Partition]:
    """Return the partitions without a taken card, in the order of their ids.

    :param taken: the modules that cannot be given: a guest has them, or they are faulty or unusable
    """
    away = frozenset(taken)
    return sorted(
        (partition for partition in partitions if not partition.modules & away),
        key=lambda partition: partition.id,
    )


def choose(
    partitions: Collection[Partition],
    taken: Collection[Module],
    count: int,
    cost: Callable[[Collection[Module]], tuple[int, ...]] = lambda modules: (),
) -> Partition | None:
    """Return the best free partition of exactly *count* cards, ``None`` if none is free.

    :param cost: returns a cost for modules that precedes all other criteria; lower is better
    """
    candidates = [partition for partition in free(partitions, taken) if partition.size == count]

    def left_free(chosen: Partition) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        left = free(partitions, chosen.modules.union(taken))
        sizes = tuple(sorted((partition.size for partition in left), reverse=True))
        return tuple(-number for number in cost(chosen.modules)), sizes, -chosen.id

    return max(candidates, key=left_free, default=None)


def exactly(partitions: Iterable[Partition], modules: Collection[Module]) -> Partition | None:
    """Return the partition of exactly the cards *modules*, ``None`` if there is none."""
    wanted = frozenset(modules)
    return next((partition for partition in partitions if partition.modules == wanted), None)


def room(partitions: Collection[Partition], taken: Collection[Module]) -> Mapping[int, int]:
    """Return how many guests of one size could get a partition at once, by each free size."""
    by_size: dict[int, list[frozenset[Module]]] = collections.defaultdict(list)
    for partition in free(partitions, taken):
        by_size[partition.size].append(partition.modules)
    return {size: _most_disjoint(by_size[size]) for size in sorted(by_size)}


def _most_disjoint(sets: list[frozenset[Module]]) -> int:
    """Return the largest number of *sets* of which no two have a common member."""
    if not sets:
        return 0
    first, *others = sets
    apart = [other for other in others if not other & first]
    with_first = 1 + _most_disjoint(apart)
    # If first overlaps no other, as in every published table, it is part of a best choice.
    return with_first if len(apart) == len(others) else max(with_first, _most_disjoint(others))


def refusal(partitions: Collection[Partition], taken: Collection[Module], count: int) -> str:
    """Return why no guest of *count* cards gets one: ``6 of 8 free, no free partition of 4``."""
    modules = frozenset[Module]().union(*(partition.modules for partition in partitions))
    state = f"{len(modules.difference(taken))} of {len(modules)} free"
    sizes = sorted({partition.size for partition in partitions})
    if count not in sizes:
        known = ", ".join(map(str, sizes)) or "none"
        return f"{state}, and the board has no partition of {count} (sizes: {known})"
    return f"{state}, no free partition of {count}"


def joined(
    partitions: Iterable[Partition], modules: Mapping[PciAddress, Module]
) -> Mapping[int, frozenset[PciAddress]]:
    """Return the addresses of each partition's cards, by the partition's id.

    A partition with a card that *modules* lacks is left out, as no instance could get it.
    """
    cards = {module: address for address, module in modules.items()}
    return {
        partition.id: frozenset(cards[module] for module in partition.modules)
        for partition in partitions
        if partition.modules <= cards.keys()
    }
