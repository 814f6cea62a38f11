# SPDX-License-Identifier: Apache-2.0
"""The text that commands print about boards whose cards guests get in fixed sets only.

An extension formats it, the one that implements :class:`nova_gpu.virt.card_sets.Sets` for such
boards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nova_gpu.core import extensions
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.virt.card_sets import Sets


class _Text:
    """The functions of the extension's module, as they are where it is not installed."""

    def of_card(self, sets: Sets, card: PciAddress) -> tuple[list[str], list[str]]:
        """Return two lists of sentences: the faults of the card's board, and notes on its place."""
        return [], []

    def facts(self, sets: Sets, card: PciAddress) -> tuple[int | None, list[dict[str, Any]] | None]:
        """Return the card's module number on its board, and the sets that include the card.

        Both are ``None`` if the card is on no such board.
        """
        return None, None

    def table(
        self, sets: Sets, cards: Sequence[GPU], held: Mapping[PciAddress, tuple[str, ...]]
    ) -> Iterable[str]:
        """Return the lines of a table with the sets of the board."""
        return ()


def text() -> _Text:
    return next(iter(extensions.load("nova_gpu.board_text")), _Text())
