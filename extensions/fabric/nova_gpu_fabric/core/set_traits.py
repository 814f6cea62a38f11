# SPDX-License-Identifier: Apache-2.0
"""Traits that describe the partitions of a board, as Placement knows numbers of cards only."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection, Mapping

from nova_gpu.core import names
from nova_gpu.core.card_sets import Module
from nova_gpu_fabric.core import partitions
from nova_gpu_fabric.core.partitions import Partition

_PARTITION = re.compile(rf"{names.TRAIT_PARTITION}([0-9]{{1,3}}(?:_[0-9]{{1,3}})*)")
_FREE_MODULE = re.compile(rf"{names.TRAIT_FREE_MODULE}([0-9]{{1,3}})")


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionSets:
    """The partitions of a board with NVSwitches as a :class:`nova_gpu.core.card_sets.CardSets`."""

    partitions: tuple[Partition, ...]
    taken: frozenset[Module]

    @property
    def free(self) -> frozenset[Module]:
        return (
            frozenset[Module]().union(*(partition.modules for partition in self.partitions))
            - self.taken
        )

    @property
    def sizes(self) -> list[int]:
        return sorted({partition.size for partition in self.partitions})

    def room(self) -> Mapping[int, int]:
        return _room(self)

    def choose(self, count: int) -> frozenset[Module] | None:
        return _choose(self, count)

    def with_taken(self, modules: Collection[Module]) -> PartitionSets:
        return PartitionSets(self.partitions, frozenset(modules))

    def traits(self) -> frozenset[str]:
        names_of_sets = (
            "_".join(map(str, sorted(partition.modules))) for partition in self.partitions
        )
        return frozenset(f"{names.TRAIT_PARTITION}{modules}" for modules in names_of_sets) | {
            f"{names.TRAIT_FREE_MODULE}{module}" for module in self.free
        }


@functools.lru_cache(maxsize=1 << 14)
def _room(board: PartitionSets) -> Mapping[int, int]:
    return partitions.room(board.partitions, board.taken)


@functools.lru_cache(maxsize=1 << 14)
def _choose(board: PartitionSets, count: int) -> frozenset[Module] | None:
    chosen = partitions.choose(board.partitions, board.taken, count)
    return chosen.modules if chosen else None


@functools.lru_cache(maxsize=1024)
def board(traits: frozenset[str]) -> PartitionSets | None:
    """Return the partitions that a provider's traits describe, ``None`` if they describe none."""
    sets = [
        frozenset(map(int, match[1].split("_")))
        for trait in sorted(traits)
        if (match := _PARTITION.fullmatch(trait))
    ]
    if not sets:
        return None
    matches = map(_FREE_MODULE.fullmatch, traits)
    free = {int(match[1]) for match in matches if match}
    # The numbers follow Fabric Manager's order, which has the large partitions first.
    ordered = sorted(sets, key=lambda modules: (-len(modules), sorted(modules)))
    table = tuple(Partition(number, item) for number, item in enumerate(ordered))
    return PartitionSets(table, frozenset[Module]().union(*sets) - free)
