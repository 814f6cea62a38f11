# SPDX-License-Identifier: Apache-2.0
"""Exact sets of cards, on boards whose cards guests get in fixed sets only.

The extension that makes the sets for guests implements them (entry points ``nova_gpu.set_traits``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from nova_gpu.core import extensions

# The number of a card's place on its board
Module = int


class CardSets(Protocol):
    """The sets in which guests can get the cards of a board, and the cards that are not free."""

    @property
    def taken(self) -> frozenset[Module]:
        """The cards that a guest has, or that cannot be given."""

    @property
    def free(self) -> frozenset[Module]:
        """The cards that an instance could get."""

    @property
    def sizes(self) -> list[int]:
        """The different sizes of all sets, free or not, in ascending order."""

    def room(self) -> Mapping[int, int]:
        """Return how many guests of one size could get a set at once, by each free size."""

    def choose(self, count: int) -> frozenset[Module] | None:
        """Return the set that a guest of *count* cards would get, ``None`` without any."""

    def with_taken(self, modules: Collection[Module]) -> CardSets:
        """Return the same sets with exactly *modules* taken."""

    def traits(self) -> frozenset[str]:
        """Return the traits of the cards' provider, of which :func:`of_traits` reads the sets."""


def of_traits(traits: frozenset[str]) -> CardSets | None:
    """Return the sets that a provider's traits describe, ``None`` if they describe none."""
    return next(filter(None, (read(traits) for read in _readers())), None)


@functools.cache
def _readers() -> Sequence[Callable[[frozenset[str]], CardSets | None]]:
    return extensions.load("nova_gpu.set_traits")
