# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
import unittest

import fixtures

from nova_gpu.cmd import cards
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind, Parent, VGPUType
from nova_gpu.host.pci import identity
from nova_gpu.host.roots import Roots
from nova_gpu.virt.inventory import discovery
from tests.fixtures import cleaned, hosts
from tests.fixtures.bases import commands as base

CARD = PciAddress.parse("0000:19:00.0")


class DescribeTest(unittest.TestCase):
    def test_mig_instances(self) -> None:
        types = {"1g.18gb": VGPUType("1g.18gb", memory_mib=16384, per_card=2, slices=1)}
        parent = Parent(Kind.INSTANCE, {}, {"1g.18gb": 2}, {"1g.18gb": (900, 1000)})
        (told,) = described = cards.describe_vgpus(DividedCard(types, {CARD: parent}))
        self.assertEqual((True, False), (told["mig"], told["plain"]))
        self.assertEqual((2, 0), (told["made"], told["available"]))
        self.assertEqual(["1g.18gb: 2 MIG instances, 16384 MiB"], list(cards.vgpu_lines(described)))


class ReadTest(base.HostTestCase):
    def test_cards_of_a_product_are_told_apart_by_one_look(self) -> None:
        """Each look reads all devices of the host."""
        state = self.root / "state"
        state.mkdir()
        self.config.config(state_path=str(state))
        host = hosts.Host(self.root)
        for number in range(8):
            host.add_gpu(f"0000:{number}1:00.0", "10de", "2335", driver="vfio-pci")
        cleaned.prove(host, pathlib.Path(state))
        looks: list[str] = []
        real = identity.addresses

        def look(product: str, roots: Roots) -> frozenset[str]:
            looks.append(product)
            return real(product, roots)

        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.pci.identity.addresses", look))
        shown = cards.read(discovery.Discovery())
        self.assertEqual([None] * 8, [card.dirty for card in shown])
        self.assertEqual(["10de:2335"], looks)
