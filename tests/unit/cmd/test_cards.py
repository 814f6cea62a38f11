# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
import unittest

import fixtures

from nova_gpu.cmd import cards
from nova_gpu.core.availability import Source
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind, Parent, VGPUType
from nova_gpu.host.pci import identity
from nova_gpu.host.roots import Roots
from nova_gpu.virt.health import failed_starts
from nova_gpu.virt.inventory import discovery
from tests.fixtures import cleaned, hosts, kernel, vgpu
from tests.fixtures.bases import commands as base
from tests.fixtures.cards import addresses

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

    def test_starts_that_failed(self) -> None:
        """Two cards close the host for whole cards, and no function is given after it failed."""
        self.config.config(state_path=str(self.root))
        host = hosts.Host(self.root)
        kernel.boot(host, "first")
        for number in range(3):
            host.add_gpu(f"0000:{number}1:00.0", "10de", "2335", driver="vfio-pci")
        host.add_gpu("0000:3b:00.0", "10de", "26b9", totalvfs=1)
        (function,) = vgpu.add_functions(host, "0000:3b:00.0", 1)
        vgpu.set_profiles(host, function, vgpu.L40S)
        failed = failed_starts.FailedStarts(failed_starts.path(), host.roots)
        for address in addresses("0000:01:00.0", "0000:11:00.0"):
            failed.failed(None, address, "EIO", RuntimeError("Input/output error"))
        for _ in range(failed_starts.MOST):
            failed.failed(Kind.TYPED, *addresses(function), "EIO", RuntimeError("it"))
        shown = cards.read(discovery.Discovery())
        self.assertEqual([Source.STARTS] * 4, [card.unavailable[-1].source for card in shown])
