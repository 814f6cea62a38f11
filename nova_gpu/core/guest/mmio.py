# SPDX-License-Identifier: Apache-2.0
"""How much of a guest's 64-bit memory-mapped I/O space cards take."""

from __future__ import annotations

from collections.abc import Iterable

GIB = 1 << 30

# The 64-bit, prefetchable BARs of all functions of one card, in bytes.
Bars = tuple[int, ...]


def window(bars: Iterable[int]) -> int:
    """Bytes behind the card's own root port, of the sizes of its 64-bit prefetchable BARs.

    BARs are aligned to their size, and ports' windows follow each other: a card whose largest BAR
    has 128 GiB takes 256 GiB if it has another small one.
    """
    sizes = sorted(bars)
    if not sizes:
        return 0
    return up(sum(sizes), sizes[-1])


def alignment(cards: Iterable[Bars]) -> int:
    """The size of the largest BAR, to which the first of the windows is aligned; 1 without BARs"""
    return max((size for bars in cards for size in bars), default=1)


def span(cards: Iterable[Bars]) -> int:
    """Bytes from the first BAR's begin to the last one's end, where windows are laid out as
    firmware does: those of the largest BARs first. What the last window is rounded up by is not
    used."""
    sizes = sorted((bars for bars in cards if bars), key=max)
    if not sizes:
        return 0
    return sum(window(bars) for bars in sizes[1:]) + sum(sizes[0])


def up(size: int, alignment: int) -> int:
    """*size* rounded up to a multiple of *alignment*"""
    return -(-size // alignment) * alignment


def in_gib(size: int) -> str:
    """*size* bytes in GiB, for people"""
    return f"{round(size / GIB, 2):g}"
