# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import unittest

from oslotest import base

from nova_gpu.core import exception
from nova_gpu.core.guest import machine_types, peers
from nova_gpu.core.model import GPU, Product
from tests.fixtures import cards
from tests.fixtures.cards import H100, P100, RTX


def card(product: Product, bus: int = 1) -> GPU:
    return cards.placed(f"0000:{bus:02x}:00.0", product=product)


class SupportsTest(base.BaseTestCase):
    def test_products(self) -> None:
        for product in (H100, P100, dataclasses.replace(H100, name="RTX A6000")):
            self.assertTrue(peers.supports(card(product)))
        for product in (
            RTX,
            dataclasses.replace(RTX, name="NVIDIA TITAN RTX"),
            dataclasses.replace(H100, name=None),
            dataclasses.replace(H100, architecture=None),
            dataclasses.replace(H100, architecture="fermi"),
            dataclasses.replace(H100, vendor_id="1002"),
        ):
            self.assertFalse(peers.supports(card(product)), product)

    def test_versions(self) -> None:
        for product, libvirt, qemu, expected in (
            (H100, 8002000, 8001000, None),
            (P100, 8002000, 6002000, None),
            (H100, 8001000, 8001000, "libvirt 8.2.0"),
            (H100, 8002000, 8000005, "with hopper it needs QEMU 8.1.0"),
            (P100, None, 8001000, "not known"),
            (P100, 8002000, None, "not known"),
        ):
            reason = peers.too_old(product, libvirt, qemu)
            self.assertEqual(expected is None, reason is None)
            self.assertIn(expected or "", reason or "")


class CliquesTest(base.BaseTestCase):
    def test_one_for_each_product(self) -> None:
        held = [card(H100, 1), card(P100, 2), card(RTX, 3), card(H100, 4), card(P100, 5)]
        cliques = {str(address): number for address, number in peers.cliques(held).items()}
        expected = {"0000:01:00.0": 0, "0000:04:00.0": 0, "0000:02:00.0": 1, "0000:05:00.0": 1}
        self.assertEqual(expected, cliques)
        self.assertEqual({}, peers.cliques(held[:3]))

    def test_there_are_sixteen(self) -> None:
        """The number has four bits."""
        kinds = [dataclasses.replace(H100, product_id=f"{number:04x}") for number in range(20)]
        held = [card(kind, 2 * n + more) for n, kind in enumerate(kinds) for more in (0, 1)]
        self.assertEqual(set(range(16)), set(peers.cliques(held).values()))


class MachineTypeTest(unittest.TestCase):
    def test_with_pci_express(self) -> None:
        for machine_type in ("q35", "pc-q35-7.2", "pc-q35-rhel9.4.0", "virt", "virt-8.0"):
            with self.subTest(machine_type=machine_type):
                machine_types.refuse_without_pci_express(machine_type)

    def test_without(self) -> None:
        for machine_type in (None, "pc", "pc-i440fx-7.2", "s390-ccw-virtio", "pseries"):
            with (
                self.subTest(machine_type=machine_type),
                self.assertRaises(exception.GuestUnfit) as caught,
            ):
                machine_types.refuse_without_pci_express(machine_type)
            self.assertIn(machine_type or "not set", str(caught.exception))
            self.assertIn("hw_machine_type=q35", str(caught.exception))
