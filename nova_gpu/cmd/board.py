# SPDX-License-Identifier: Apache-2.0
"""Texts of the host's commands about cards that guests get in exact sets.

The guest package for boards formats them; without it there are no texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from nova_gpu.core import extensions
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.virt.sets import Sets


class _Text(Protocol):
    def of_card(self, sets: Sets, card: PciAddress) -> tuple[list[str], list[str]]:
        """Return what is wrong with the board of a card, and notes about the card's place on it."""

    def facts(self, sets: Sets, card: PciAddress) -> tuple[int | None, list[dict[str, Any]] | None]:
        """Return the place of a card on its board, and its sets; ``None`` without a board."""

    def table(
        self, sets: Sets, cards: Sequence[GPU], held: Mapping[PciAddress, tuple[str, ...]]
    ) -> Iterable[str]:
        """Return a table with the sets of a board as lines.

        :param held: the instances that have each card, if that is known
        """


class _None:
    def of_card(self, sets: Sets, card: PciAddress) -> tuple[list[str], list[str]]:
        return [], []

    def facts(self, sets: Sets, card: PciAddress) -> tuple[int | None, list[dict[str, Any]] | None]:
        return None, None

    def table(
        self, sets: Sets, cards: Sequence[GPU], held: Mapping[PciAddress, tuple[str, ...]]
    ) -> Iterable[str]:
        return ()


def text() -> _Text:
    return extensions.load(extensions.BOARD_TEXT) or _None()
