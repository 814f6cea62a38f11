# SPDX-License-Identifier: Apache-2.0
"""Figures computed by hand, next to what firmware did: QEMU 7.2 and 10.0 with SeaBIOS 1.16.2 and
1.16.3 and OVMF 2022.11 were given these BARs and memory sizes, and ``info pci`` was read."""

from __future__ import annotations

import dataclasses
import unittest

from nova_gpu.core.guest.address_space import GIB, NOTHING, Bits, Guest, Setting

MIB = 1 << 20
SMALL = (256 * MIB, 32 * MIB)
H100_NVL = (128 * GIB, 32 * MIB, 16 * MIB)
RTX_4090 = (32 * GIB, 32 * MIB)
INTEL, AMD = Bits(40, 46), Bits(40, 48, amd=True)
DESKTOP = Bits(39, 39)


def bios(gib: int) -> Guest:
    return Guest(gib * GIB, uefi=False)


def uefi(gib: int) -> Guest:
    return Guest(gib * GIB, uefi=True)


class FourLargeCardsTest(unittest.TestCase):
    """Four H100 NVL, of which guests with 40 address bits saw 3, 2 and 1 by their memory.

    Each window has 256 GiB, 128 GiB of which are the BAR; the last one's other 128 GiB are not
    used. Memory ends 2 GiB behind its size, the first BAR begins at the next multiple of 128 GiB.
    """

    def test_bits(self) -> None:
        # BIOS on Intel: 258 -> 384; BARs to 384 + 3 * 256 + 128 = 1280, and 48 MiB; from 258 on
        # that is 1023. On AMD QEMU moves the memory above 4 GiB to 1024: 256 -> 1278 -> 1280, BARs
        # to 2176, of 2048 GiB in 41 bits. UEFI: The window is an eighth: 512 GiB of 42 bits are too
        # few for 896, 1024 GiB of 43 serve.
        for gib in (256, 512, 768):
            for guest, room, bits in (
                (bios(gib), INTEL, 41),
                (bios(gib), AMD, 42),
                (uefi(gib), INTEL, 43),
                (uefi(gib), AMD, 43),
            ):
                setting = Setting(bits, 1023 * GIB, gib_pages=guest.uefi)
                self.assertEqual(setting, room.setting([H100_NVL] * 4, guest))

    def test_forty_bits(self) -> None:
        """One fewer than those guests saw: the last one's window ended behind the last address."""
        for gib, count in ((256, 3), (512, 2), (768, 1)):
            guest = Guest(gib * GIB, uefi=False, ports=0)
            self.assertEqual(count - 1, Bits().most_cards(H100_NVL, guest, 4))


class SettingTest(unittest.TestCase):
    def test_small_cards_leave_the_domain_as_it_is(self) -> None:
        for room in (INTEL, AMD, DESKTOP, Bits()):
            for guest in (bios(2), bios(64), uefi(2), uefi(64)):
                self.assertEqual(NOTHING, room.setting([SMALL] * 8, guest))

    def test_firmware_that_does_not_believe_forty_bits(self) -> None:
        """A BAR of 64 GiB had no place in OVMF's 32 GiB on an Intel processor; AMD's had 128."""
        large = (64 * GIB,)
        self.assertIsNone(Bits().setting([large], uefi(1)))
        setting = Setting(41, 124 * GIB, gib_pages=True)
        self.assertEqual(setting, INTEL.setting([large], uefi(1)))
        self.assertIsNotNone(Bits(amd=True).setting([large], uefi(1)))

    def test_no_pages_of_a_gib(self) -> None:
        """OVMF 2022.11 and 2025.02 found a place for a BAR of 256 GiB in 42 bits, and none where
        the processor had no such pages: they took it for one of 40, of which an eighth is 128 GiB.
        So 41 serve for 64 GiB as they do with such pages, and SeaBIOS does not ask.
        """
        huge, large = (256 * GIB,), (64 * GIB,)
        small_pages = dataclasses.replace(INTEL, gib_pages=False)
        setting = Setting(42, 508 * GIB, gib_pages=True)
        self.assertEqual(setting, INTEL.setting([huge], uefi(1)))
        self.assertIsNone(small_pages.setting([huge], uefi(1)))
        self.assertEqual(Setting(41, 124 * GIB), small_pages.setting([large], uefi(1)))
        self.assertEqual(INTEL.setting([huge], bios(1)), small_pages.setting([huge], bios(1)))

    def test_desktop(self) -> None:
        """39 address bits: an eighth is 64 GiB, the window of one such card."""
        self.assertEqual(1, DESKTOP.most_cards(RTX_4090, uefi(32), 4))
        self.assertEqual(4, DESKTOP.most_cards(RTX_4090, bios(32), 4))
        self.assertEqual(0, DESKTOP.most_cards((256 * GIB, MIB), uefi(32), 4))

    def test_memory_leaves_no_room(self) -> None:
        self.assertIsNone(Bits().setting([H100_NVL], bios(1000)))
        self.assertIsNone(Bits(41, 41).setting([H100_NVL], uefi(1800)))

    def test_the_operators_figure(self) -> None:
        self.assertEqual(NOTHING, Bits(given_gib=256).setting([H100_NVL], bios(4)))
        self.assertIsNone(Bits(40, 46, given_gib=255).setting([H100_NVL], bios(4)))
        self.assertEqual(NOTHING, INTEL.setting([], bios(4)), "without cards")


class ReservedTest(unittest.TestCase):
    def test_ports(self) -> None:
        """Each takes a 256th of OVMF's window: the 1024 GiB of 43 bits are enough for 896 GiB with
        31 of them, and not with 32."""
        for ports, bits in ((31, 43), (32, 44)):
            guest = Guest(64 * GIB, uefi=True, ports=ports)
            setting = INTEL.setting([H100_NVL] * 4, guest)
            assert setting is not None
            self.assertEqual(bits, setting.bits)
