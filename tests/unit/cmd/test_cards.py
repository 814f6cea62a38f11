# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.cmd import cards
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind, Parent, VGPUType

CARD = PciAddress.parse("0000:19:00.0")


class DescribeTest(unittest.TestCase):
    def test_mig_instances(self) -> None:
        types = {"1g.18gb": VGPUType("1g.18gb", memory_mib=16384, per_card=2, slices=1)}
        parent = Parent(Kind.INSTANCE, {}, {"1g.18gb": 2}, {"1g.18gb": (900, 1000)})
        (told,) = described = cards.describe_vgpus(DividedCard(types, {CARD: parent}))
        self.assertEqual((True, False), (told["mig"], told["plain"]))
        self.assertEqual((2, 0), (told["made"], told["available"]))
        self.assertEqual(["1g.18gb: 2 MIG instances, 16384 MiB"], list(cards.vgpu_lines(described)))
