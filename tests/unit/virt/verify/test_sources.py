# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import device
from nova_gpu.virt.verify.sources import Difference, Instance, Kind

CARD, PART = map(device.parse, ("0000:3b:00.0", "0000:5e:00.0/nvidia-63/0"))


class SourcesTest(unittest.TestCase):
    def test_cards_of_an_instance(self) -> None:
        """Whole ones and vGPUs, of both sides of a move"""
        counted = frozenset({("here", CARD), ("there", CARD), ("parts", PART)})
        instance = Instance(active=True, settled=True, flavor_count=2, counted=counted)
        self.assertEqual(frozenset({CARD, PART}), instance.cards)

    def test_difference_that_is_there_again(self) -> None:
        """By that it is told that it was no moment between one source and the next."""
        first, again = (Difference(Kind.NO_DOMAIN, "one", "text", "remedy") for _ in range(2))
        other = Difference(Kind.NO_DOMAIN, "two", "text", "remedy")
        self.assertEqual({first}, {first, other} & {again})
        self.assertFalse(first.safe, "nothing is repaired that is not said to be safe")
