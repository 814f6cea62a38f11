# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import pathlib
import unittest
from typing import Any

import fixtures
from nova import exception as nova_exception
from nova import test
from nova.pci import request

from nova_gpu.core import names
from nova_gpu.core.model import GPU, DeliveryMode, GroupKey, PciAddress, Product
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.delivery.pci_aliases import DeviceSpec
from nova_gpu_migrate.core.stock_holding import Alias, StockProvider
from nova_gpu_migrate.virt import aliases, providers
from tests.fixtures import hosts, pci

A2, L4 = Product("10de", "25b6", "A2"), Product("10de", "27b8", "L4")
ONE, TWO = PciAddress(0, 1, 0, 0), PciAddress(0, 2, 0, 0)
GPUS = (GPU(TWO, L4, 0x030200), GPU(ONE, A2, 0x030200))
OF_A2 = {"vendor_id": "10DE", "product_id": "25B6"}
OF_L4 = {"vendor_id": "10de", "product_id": "27b8"}


class AliasesTest(test.NoDBTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(pathlib.Path(self.useFixture(fixtures.TempDir()).path))
        self.host.add_gpu(str(ONE), "10de", "25b6")
        self.slots: list[Slot] = []
        self.companions: list[PciAddress] = []
        self.device_spec: list[str] = []
        self.providers: dict[PciAddress, StockProvider] = {}

    def read(self, *own: dict[str, Any] | str) -> list[Alias]:
        texts = [text if isinstance(text, str) else json.dumps(text) for text in own]
        spec, roots = DeviceSpec(self.device_spec), self.host.roots
        functions = aliases.read(GPUS, self.slots, self.companions, roots, spec, self.providers)
        return functions.given_by(aliases.configured(texts))

    def test_several_products(self) -> None:
        """Nova joins what has one name."""
        self.host.add_gpu(str(TWO), "10de", "27b8")
        read_aliases = self.read({**OF_A2, "name": "any"}, {**OF_L4, "name": "any"})
        self.assertEqual([Alias("any", (ONE, TWO), {})], read_aliases)
        # What it does not read
        unnamed = '{"vendor_id": "10de", "product_id": "25b6"}'
        for text in ("no json", "[]", "3", unnamed, {**OF_A2, "name": 1}):
            with self.subTest(text):
                self.assertEqual(1, len(self.read(text, {**OF_A2, "name": "a2"})))

    def test_device_types(self) -> None:
        """As Nova gives them: a card that can have virtual functions by its own type alone."""
        self.host.add_gpu(str(TWO), "10de", "27b8", totalvfs=32)
        for kind, cards in (
            ({}, [ONE]),
            ({"device_type": "type-PCI"}, [ONE]),
            ({"device_type": "type-PF"}, [TWO]),
            ({"device_type": "type-VF"}, []),
        ):
            with self.subTest(kind):
                aliases_ = [self.read({**ids, **kind, "name": "own"}) for ids in (OF_A2, OF_L4)]
                self.assertEqual(cards, [c for alias in aliases_ for a in alias for c in a.cards])

    def test_virtual_functions(self) -> None:
        """Those that have a vGPU, by the ids of their own"""
        functions = [PciAddress(0, 1, 0, number) for number in (4, 5, 6)]
        self.host.remove(str(ONE))
        self.host.add_gpu(str(ONE), "10de", "25b6", totalvfs=4)
        for function in functions:
            self.host.add_vf(str(ONE), str(function), "25b7")
        self.slots = [Slot(function, "nvidia-35", 0) for function in functions[:2]]
        spec = {"vendor_id": "10de", "product_id": "25b7", "device_type": "type-VF", "name": "q"}
        words = {"vgpus": "= 1", "vgpu_type": "s== nvidia-35"}
        self.assertEqual([Alias("q", (*functions[:2],), words)], self.read(spec))
        self.assertEqual([], self.read({**spec, "device_type": "type-PF"}))
        del spec["device_type"]  # as Nova gives them, too
        self.assertEqual([Alias("q", (*functions[:2],), words)], self.read(spec))
        self.slots.append(Slot(functions[2], "nvidia-36", 0))
        self.assertEqual([Alias("q", (*functions,), {})], self.read(spec))

    def test_other_functions_of_cards(self) -> None:
        """By the ids of their own, also with the name of an alias of cards."""
        self.host.add_gpu(str(TWO), "10de", "27b8", companions=[pci.AUDIO])
        self.companions = [PciAddress(0, 2, 0, 1)]
        sound = {"vendor_id": "10de", "product_id": "10f0"}
        words = {"gpus": "= 1", "gpu:model": "s== L4"}
        read_aliases = self.read(
            {**sound, "name": "l4"}, {**sound, "name": "s"}, {**OF_L4, "name": "l4"}
        )
        both = Alias("l4", (TWO,), words, (*self.companions,))
        self.assertEqual([both, Alias("s", (), {}, (*self.companions,))], read_aliases)
        self.companions = []
        self.assertEqual([], self.read({**sound, "name": "s"}))

    def test_a_card_that_is_in_no_option_any_more(self) -> None:
        """Stock Nova's provider has the class and the traits until nova-gpu's driver starts."""
        self.host.add_gpu(str(TWO), "10de", "27b8")
        alias = {"resource_class": "a2", "traits": "fast", "name": "a2"}
        self.assertEqual([], self.read(alias))
        self.providers = {
            ONE: StockProvider("", frozenset(["CUSTOM_A2"]), frozenset(["CUSTOM_FAST"]))
        }
        (read_alias,) = self.read(alias)
        self.assertEqual((ONE,), read_alias.cards)
        self.assertEqual([], self.read({**alias, "traits": "slow"}))
        self.device_spec = [json.dumps(OF_A2)]
        self.assertEqual([], self.read(alias))

    def test_what_device_spec_adds(self) -> None:
        """Classes and traits are those of Placement, in its own form."""
        self.host.add_gpu(str(TWO), "10de", "27b8")
        tags = {"resource_class": "gpu-a2", "traits": "big,CUSTOM_FAST"}
        self.device_spec = [json.dumps({**OF_A2, **tags}), json.dumps(OF_L4)]
        for spec, gives in (
            ({"resource_class": "CUSTOM_GPU_A2"}, {ONE}),
            ({"resource_class": "CUSTOM_GPU_A2", "traits": "CUSTOM_BIG"}, {ONE}),
            ({**OF_A2, "traits": "CUSTOM_BIG,CUSTOM_SMALL"}, set()),
            ({"resource_class": "CUSTOM_PCI_10DE_27B8"}, {TWO}),
            ({**OF_L4, "traits": "CUSTOM_BIG"}, set()),
            ({**OF_A2, "numa_policy": "preferred"}, {ONE}),
            ({"traits": "CUSTOM_BIG"}, set()),
        ):
            with self.subTest(spec):
                read_aliases = self.read({**spec, "name": "own"})
                self.assertEqual(gives, {card for alias in read_aliases for card in alias.cards})

    def test_accepted(self) -> None:
        """By Nova's own reader, on a host without the scheduler's options."""
        by_class = {"resource_class": "CUSTOM_FPGA", "name": "fpga"}
        for other in (by_class, {**OF_L4, "name": "a2", "device_type": "type-PF"}):
            with self.subTest(other):
                own = {**OF_A2, "name": "a2", "device_type": "type-PF"}
                self.flags(alias=[json.dumps(own), json.dumps(other)], group="pci")
                with aliases.accepted():
                    self.assertIn("a2", _aliases_of_nova())
        self.flags(alias=[json.dumps(by_class)], group="pci")
        self.assertRaises(nova_exception.PciInvalidAlias, _aliases_of_nova)


def _aliases_of_nova() -> dict[str, Any]:
    read = request.get_alias_from_config
    return dict(getattr(read, "__wrapped__", read)())  # cached since 2026.2


class FunctionTest(unittest.TestCase):
    def test_of_stock_nova(self) -> None:
        function = PciAddress(0, 0x3B, 0x1F, 7)
        for name in ("host1_0000:3B:1F.7", "host1_pci_0000_3b_1f_7", "a_b_0000:3b:1f.7"):
            self.assertEqual(function, providers.function_of(name), name)
        far = providers.function_of("host1_10000:01:00.0")
        self.assertEqual(PciAddress(0x10000, 1, 0, 0), far)

    def test_of_others(self) -> None:
        own = names.provider_name("host1", GroupKey("10de", "25b6", DeliveryMode.PCI))
        for name in ("host1", own, "host1_pci_0000_3b_00", "0000:3b:00.0", "host1_0000:3b:00.8"):
            self.assertIsNone(providers.function_of(name), name)
