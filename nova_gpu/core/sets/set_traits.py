# SPDX-License-Identifier: Apache-2.0
"""Traits that describe the partitions of a board, as Placement knows numbers of cards only."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection, Iterable, Mapping

from nova_gpu.core import names
from nova_gpu.core.sets import partitions
from nova_gpu.core.sets.partitions import Module, Partition

_PARTITION = re.compile(rf"{names.TRAIT_PARTITION}([0-9]{{1,3}}(?:_[0-9]{{1,3}})*)")
_FREE_MODULE = re.compile(rf"{names.TRAIT_FREE_MODULE}([0-9]{{1,3}})")


@dataclasses.dataclass(frozen=True, slots=True)
class Board:
    """The partitions of a board with NVSwitches, and the numbers of the modules not free.

    A module is a card, by its number on the board. It is ``taken`` if a guest has it, or if it
    cannot be given.
    """

    partitions: tuple[Partition, ...]
    taken: frozenset[Module]

    @property
    def free(self) -> frozenset[Module]:
        """The modules that an instance could get."""
        return (
            frozenset[Module]().union(*(partition.modules for partition in self.partitions))
            - self.taken
        )

    @property
    def sizes(self) -> list[int]:
        """The different sizes of all partitions, free or not, in ascending order."""
        return sorted({partition.size for partition in self.partitions})

    def room(self) -> Mapping[int, int]:
        """Return how many more guests of each size fit (:func:`partitions.room`)."""
        return _room(self)

    def choose(self, count: int) -> Partition | None:
        """Return the partition that a guest of *count* cards would get, ``None`` without any."""
        return _choose(self, count)

    def given(self, modules: Collection[Module]) -> Board:
        """Return this board with *modules* taken as well."""
        return Board(self.partitions, self.taken.union(modules))

    def freed(self, modules: Collection[Module]) -> Board:
        """Return this board with *modules* no longer taken."""
        return Board(self.partitions, self.taken.difference(modules))


@functools.lru_cache(maxsize=1 << 14)
def _room(board: Board) -> Mapping[int, int]:
    return partitions.room(board.partitions, board.taken)


@functools.lru_cache(maxsize=1 << 14)
def _choose(board: Board, count: int) -> Partition | None:
    return partitions.choose(board.partitions, board.taken, count)


def traits(table: Iterable[Partition], free: Collection[Module]) -> frozenset[str]:
    """Return the traits of the provider of a board's cards.

    :param free: the modules that an instance could get now
    """
    sets = ("_".join(map(str, sorted(partition.modules))) for partition in table)
    return frozenset(f"{names.TRAIT_PARTITION}{modules}" for modules in sets) | frozenset(
        f"{names.TRAIT_FREE_MODULE}{module}" for module in free
    )


@functools.lru_cache(maxsize=1024)
def board(traits_: frozenset[str]) -> Board | None:
    """Return the board that a provider's traits describe, ``None`` if they describe none."""
    sets = [
        frozenset(map(int, match[1].split("_")))
        for trait in sorted(traits_)
        if (match := _PARTITION.fullmatch(trait))
    ]
    if not sets:
        return None
    matches = map(_FREE_MODULE.fullmatch, traits_)
    free = {int(match[1]) for match in matches if match}
    # The numbers follow Fabric Manager's order, which has the large partitions first.
    ordered = sorted(sets, key=lambda modules: (-len(modules), sorted(modules)))
    table = tuple(Partition(number, item) for number, item in enumerate(ordered))
    return Board(table, frozenset[Module]().union(*sets) - free)
