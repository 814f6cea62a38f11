# SPDX-License-Identifier: Apache-2.0
"""What discovery finds, beside lspci and nvidia-smi."""

from __future__ import annotations

import re
import shutil
import unittest

from nova_gpu.core.model import PciAddress
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.pci import sysfs
from tests.gpu import machine

# lspci -Dnmm: 0000:19:00.0 "0302" "10de" "2330" -ra1 "10de" "16c1"
_FUNCTION = re.compile(r'(\S+) "([0-9a-f]{4})" "10de" "([0-9a-f]{4})"')
_CLASSES = ("0300", "0302", "0380")
# NVML rounds to whole MiB in its own way.
_ROUNDED_MIB = 1


class LspciTest(unittest.TestCase):
    def test_cards(self) -> None:
        if not shutil.which("lspci"):
            self.skipTest("lspci is not on PATH: install pciutils")
        text = machine.said("lspci.txt", ["lspci", "-Dnmm"]).decode()
        functions = {
            (PciAddress.parse(address), device)
            for address, kind, device in _FUNCTION.findall(text)
            if kind in _CLASSES
        }
        whole = {function for function in functions if not _is_virtual(function[0])}
        gpus = {
            (gpu.address, gpu.product.product_id)
            for gpu in machine.all_gpus()
            if gpu.product.vendor_id == "10de"
        }
        self.assertEqual(whole, gpus)


def _is_virtual(address: PciAddress) -> bool:
    return machine.ROOTS.sysfs.joinpath(f"bus/pci/devices/{address}/physfn").exists()


class SmiTest(unittest.TestCase):
    def setUp(self) -> None:
        self.cards = machine.smi_cards()
        self.gpus = {gpu.address: gpu for gpu in machine.gpus()}

    def test_products(self) -> None:
        self.assertEqual(self.cards.keys(), self.gpus.keys())
        for address, gpu in self.gpus.items():
            with self.subTest(address=address):
                card = self.cards[address]
                product = gpu.product
                self.assertEqual(card.product_id, product.product_id)
                # NVML's name, without the vendor's
                self.assertIn(product.name, card.name)
                self.assertEqual(
                    (card.architecture or "").lower().partition(" ")[0], product.architecture
                )
                self.assertEqual(card.uuid, gpu.uuid)
                self.assertEqual(card.minor, gpu_instances.gpu_minor(address, machine.ROOTS))
                assert product.memory_mib and card.memory_mib
                self.assertAlmostEqual(card.memory_mib, product.memory_mib, delta=_ROUNDED_MIB)
                # The largest of the BARs is what nvidia-smi calls BAR1.
                sizes = sysfs.high_bars(address, machine.ROOTS)
                self.assertEqual(card.mapped_mib, max(sizes, default=0) >> 20)

    def test_capability(self) -> None:
        command = ["nvidia-smi", "--query-gpu=pci.bus_id,compute_cap", "--format=csv,noheader"]
        text = machine.said("compute_cap.txt", command).decode()
        smi_capabilities = dict(line.split(", ") for line in text.splitlines())
        facts = machine.facts()
        capabilities = {
            address: facts[address].compute_capability
            for address in map(PciAddress.parse, smi_capabilities)
        }
        expected = {
            PciAddress.parse(address): tuple(map(int, capability.split(".")))
            for address, capability in smi_capabilities.items()
        }
        self.assertEqual(expected, capabilities)
