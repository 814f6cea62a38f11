# SPDX-License-Identifier: Apache-2.0
"""How much of a guest's 64-bit memory-mapped I/O space a card takes."""

from __future__ import annotations

from collections.abc import Iterable

GIB = 1 << 30

# What a q35 guest surely has: pci-hole64-size in QEMU's hw/pci-host/q35.c and OVMF's
# PcdPciMmio64Size are 32 GiB both. Guests with another firmware or more address bits have more.
GUEST_GIB = 32


def window(bars: Iterable[int]) -> int:
    """Bytes behind the card's own root port, of the sizes of its 64-bit prefetchable BARs.

    BARs are aligned to their size, and ports' windows follow each other: a card whose largest BAR
    has 128 GiB takes 256 GiB if it has another small one.
    """
    sizes = sorted(bars)
    if not sizes:
        return 0
    largest = sizes[-1]
    return -(-sum(sizes) // largest) * largest


def in_gib(size: int) -> str:
    """*size* bytes in GiB, for people"""
    return f"{round(size / GIB, 2):g}"
