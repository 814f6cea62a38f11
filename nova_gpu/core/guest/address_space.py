# SPDX-License-Identifier: Apache-2.0
"""A q35 guest's physical address space: whether its firmware can place all BARs, and how.

No setting tells the firmware how much room a guest needs. It uses the address bits of the guest's
processor:

* SeaBIOS puts the BARs above the guest's memory, or since 1.16.3 at the end of the address space,
  of which it then uses 44 bits unless the guest has 1 TiB of memory (``src/fw/pciinit.c``).
* OVMF since 2022-11 uses the last eighth of the address space, of 46 bits at most. It trusts the
  processor's number if it is 41 or more, because QEMU reports 40 by default; it trusts 40 of AMD's
  processors only, and 36 or 39 of Intel's only. Otherwise the window has 32 GiB. If the processor
  has no pages of 1 GiB, it uses 40 bits at most (``OvmfPkg/Library/PlatformInitLib/MemDetect.c``).

QEMU's ``pci-hole64-size`` changes neither. QEMU uses it to refuse a guest that has too few address
bits, to move the memory of guests with AMD's processors past the addresses that their IOMMU cannot
map, and to tell the guest's kernel where the window ends (``hw/i386/pc.c``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

GIB = 1 << 30

# The 64-bit, prefetchable BARs of all functions of one card, in bytes.
Bars = tuple[int, ...]

# QEMU's default for a processor without a setting.
DEFAULT_BITS = 40
# pci-hole64-size of QEMU's q35, and OVMF's window if it does not trust the processor's address
# bits.
DEFAULT_HOLE = 32 * GIB

_FOUR_GIB = 4 * GIB
# QEMU's pc_q35_init(): larger guests have 2 GiB below 4 GiB, smaller ones all of their memory.
_SPLIT = 0xB0000000
_BELOW = 2 * GIB
# AMD_HT_START, and the address to which QEMU then moves the memory above 4 GiB.
_AMD_HOLE = 0xFD00000000
_ABOVE_AMD_HOLE = 1 << 40
# The limits of both firmwares for the sake of guest kernels that cannot use more address bits.
_SEABIOS_BITS, _SEABIOS_LARGE = 44, 1 << 40
_OVMF_BITS, _OVMF_EIGHTH = 46, 3
_OVMF_BELIEVES = 41
_OVMF_SMALL_PAGES_BITS = 40
# Each hot-plug port gets this part of OVMF's window, and of SeaBIOS' address space.
_OVMF_PORT, _SEABIOS_PORT = 8, 11


@dataclasses.dataclass(frozen=True, slots=True)
class Guest:
    """The facts of one guest that determine its address space.

    ``memory`` is in bytes. ``uefi``: its firmware is OVMF, else SeaBIOS. ``ports`` is the number of
    PCI Express ports without a card, for which firmware reserves room. ``tree``: its cards are on
    several PCI roots.
    """

    memory: int
    uefi: bool
    ports: int = 16
    tree: bool = False

    def span(self, cards: Sequence[Bars]) -> int:
        """Return how many bytes the BARs of *cards* take, with the padding between them.

        With cards on several roots, the padding after the last window of each root counts too.
        """
        return sum(map(window, cards)) if self.tree else span(cards)


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a libvirt domain that a guest needs for the BARs of its cards.

    ``bits`` are the address bits of its processor, ``hole`` is the size of its 64-bit PCI hole in
    bytes; ``None`` if the default suffices. ``gib_pages``: the processor must have pages of 1 GiB.
    """

    bits: int | None = None
    hole: int | None = None
    gib_pages: bool = False


NOTHING = Setting()


@dataclasses.dataclass(frozen=True, slots=True)
class Bits:
    """The address bits that the guests of one host have, or can be given.

    ``least`` are those of a guest whose domain does not set them, ``most`` is the largest number
    that a domain can set. ``amd``: the processor is AMD's. ``gib_pages``: the guests' processors
    have pages of 1 GiB. ``given_gib`` is ``[gpu]guest_mmio_gib``, ``None`` if it is not set; a
    number replaces all of these.
    """

    least: int = DEFAULT_BITS
    most: int = DEFAULT_BITS
    amd: bool = False
    given_gib: int | None = None
    gib_pages: bool = True

    def setting(self, cards: Sequence[Bars], guest: Guest) -> Setting | None:
        """Return the settings with which *guest* can have *cards*, ``None`` if it cannot."""
        if self.given_gib is not None:
            needed = sum(map(window, cards))
            return NOTHING if needed <= self.given_gib * GIB else None
        hole = _hole(cards, guest)
        for bits in range(min(self.least, self.most), self.most + 1):
            if self._is_placed(cards, guest, bits):
                return Setting(
                    bits if bits != self.least else None,
                    hole if hole > DEFAULT_HOLE else None,
                    guest.uefi and self.gib_pages and bits > _OVMF_SMALL_PAGES_BITS,
                )
        return None

    def most_cards(self, bars: Bars, guest: Guest, limit: int) -> int:
        """Return how many cards with these *bars* one guest can have, up to *limit*."""
        return self.most_of([bars] * limit, guest)

    def most_of(self, cards: Sequence[Bars], guest: Guest) -> int:
        """Return the largest n such that one guest can have the first n of *cards*."""
        return next((n for n in range(len(cards), 0, -1) if self.setting(cards[:n], guest)), 0)

    def _is_placed(self, cards: Sequence[Bars], guest: Guest, bits: int) -> bool:
        hole = _hole(cards, guest)
        end = _end_of_memory(guest.memory)
        if self.amd and end > _FOUR_GIB and end + max(hole, DEFAULT_HOLE) > _AMD_HOLE:
            end += _ABOVE_AMD_HOLE - _FOUR_GIB
        if not guest.uefi:
            return _seabios_places(cards, end, bits, guest.ports)
        believed = bits >= _OVMF_BELIEVES or bits in ((40,) if self.amd else (36, 39))
        most = _OVMF_BITS if self.gib_pages else _OVMF_SMALL_PAGES_BITS
        used = min(bits, most) if believed else None
        return _ovmf_places(guest.span(cards), end, bits, used, self.amd, guest.ports)


# The room that every guest has without settings.
LEAST = Bits()


def _seabios_places(cards: Sequence[Bars], end: int, bits: int, ports: int) -> bool:
    used = bits if end - _FOUR_GIB >= _SEABIOS_LARGE else min(bits, _SEABIOS_BITS)
    begin = up(end, alignment(cards))
    reserved = ports << used >> _SEABIOS_PORT
    return begin + sum(map(window, cards)) + reserved <= 1 << used


def _ovmf_places(span: int, end: int, bits: int, used: int | None, amd: bool, ports: int) -> bool:
    if used is None:  # OVMF does not trust the processor's number of bits.
        # The window then lies behind the memory, wherever that ends.
        return span <= DEFAULT_HOLE and up(end, DEFAULT_HOLE) + DEFAULT_HOLE <= 1 << bits
    size = 1 << used - _OVMF_EIGHTH
    begin = (1 << used) - size
    if amd and begin < _ABOVE_AMD_HOLE <= begin + size:
        begin -= size
    reserved = ports * (size >> _OVMF_PORT) if size > DEFAULT_HOLE else 0
    return span + reserved <= size and up(end, DEFAULT_HOLE) <= begin


def _hole(cards: Sequence[Bars], guest: Guest) -> int:
    """Return the size of the 64-bit PCI hole that *cards* need, from the end of the memory on."""
    end = _end_of_memory(guest.memory)
    begin = up(end, max(alignment(cards), GIB))
    return up(begin - end + guest.span(cards), GIB)


def _end_of_memory(memory: int) -> int:
    if memory < _SPLIT:
        return _FOUR_GIB
    return up(_FOUR_GIB + memory - _BELOW, GIB)


def window(bars: Iterable[int]) -> int:
    """Return the bytes of address space that the root port of a card takes for these *bars*.

    The window of a port is aligned to its largest BAR: a card with one BAR of 128 GiB and a small
    one takes 256 GiB.
    """
    sizes = sorted(bars)
    if not sizes:
        return 0
    return up(sum(sizes), sizes[-1])


def alignment(cards: Iterable[Bars]) -> int:
    """Return the size of the largest BAR, to which the first window is aligned; 1 without BARs."""
    return max((size for bars in cards for size in bars), default=1)


def span(cards: Iterable[Bars]) -> int:
    """Return how many bytes the BARs of *cards* on one root take, with the padding between them.

    Firmware places the windows with the largest BARs first. The padding after the last window does
    not count.
    """
    sizes = sorted((bars for bars in cards if bars), key=max)
    if not sizes:
        return 0
    return sum(window(bars) for bars in sizes[1:]) + sum(sizes[0])


def up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def in_gib(size: int) -> str:
    """Return *size* bytes as text in GiB, with at most two decimals: ``0.5``."""
    return f"{round(size / GIB, 2):g}"
