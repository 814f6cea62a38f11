# SPDX-License-Identifier: Apache-2.0
"""That the VM is the host the other tests take it for."""

from __future__ import annotations

import pathlib
import unittest

from lab.vm import cards
from tests.vfio import host

_BRIDGE = 0x06


class HostTest(unittest.TestCase):
    def _not_bridges(self, address: str) -> list[str]:
        members = host.group_members(address)
        return [each for each in members if host.class_code(each) >> 16 != _BRIDGE]

    def test_whole_cards(self) -> None:
        for card in cards.WHOLE:
            functions = [card, card.replace(".0", ".1")]
            self.assertEqual(functions, host.functions(card))
            self.assertEqual(functions, host.group_members(card))
            self.assertEqual(host.HOST_DRIVERS, host.drivers(card))

    def test_strangers(self) -> None:
        behind = [cards.BEHIND_BRIDGE, cards.ON_BRIDGE]
        self.assertEqual(behind, self._not_bridges(cards.BEHIND_BRIDGE))
        with_stranger = [*host.functions(cards.WITH_STRANGER), cards.STRANGER]
        self.assertEqual(with_stranger, self._not_bridges(cards.WITH_STRANGER))
        self.assertEqual([cards.NETWORK], self._not_bridges(cards.NETWORK))

    def test_kvm(self) -> None:
        self.assertTrue(pathlib.Path("/dev/kvm").is_char_device())

    def test_bound_there_and_back(self) -> None:
        """By hand, as the kernel's documentation has it: what the other tests rest on."""
        functions = host.functions(cards.WHOLE[0])
        for driver in ("vfio-pci", ""):
            for function in functions:
                host.bind(function, driver)
            expected = [driver] * 2 if driver else host.HOST_DRIVERS
            self.assertEqual(expected, host.drivers(cards.WHOLE[0]))
            made = [len(host.vfio_devices(function)) for function in functions]
            self.assertEqual([1, 1] if driver else [0, 0], made)
        self.assertEqual([None, None], host.overrides(cards.WHOLE[0]))
