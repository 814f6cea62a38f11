# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from oslotest import base

from nova_gpu.core import exception, model
from nova_gpu.host.pci import selection

ADDRESS = model.PciAddress.parse("0000:88:00.0")
H200 = model.Product("10de", "2335")
MATROX = model.Product("102b", "0536")
Options = tuple[list[str], list[str], list[str]]
DEFAULTS: Options = (["10de", "1002", "8086"], [], [])


def takes(options: Options, product: model.Product = H200, class_code: int = 0x030200) -> bool:
    return selection.Selection.parse(*options).takes(ADDRESS, product, class_code)


class TestTakes(base.BaseTestCase):
    def test_without_options_the_vendor_decides(self) -> None:
        self.assertTrue(takes(DEFAULTS))
        self.assertFalse(takes(DEFAULTS, MATROX))
        self.assertTrue(takes((["102b"], [], []), MATROX))
        self.assertFalse(takes((["102b"], [], [])))

    def test_accelerators(self) -> None:
        """AMD's are GPUs, and others what an option names."""
        for key, gpu in (("1002:74a1", True), ("8086:7d1d", False), ("10de:2335", False)):
            product = model.Product(*key.split(":"))
            self.assertEqual(gpu, takes(DEFAULTS, product, 0x120000), key)
            self.assertTrue(takes((["10de"], [], [key]), product, 0x120000))
            self.assertTrue(takes(DEFAULTS, product))

    def test_named(self) -> None:
        for options, named in (
            (DEFAULTS, False),
            ((["10de"], ["0000:88:00.0"], []), True),
            ((["10de"], [], ["10de:2335"]), True),
            ((["10de"], ["0000:89:00.0"], ["10de:2330"]), False),
        ):
            selected = selection.Selection.parse(*options)
            self.assertEqual(named, selected.names(ADDRESS, H200), options)

    def test_named_cards_only_where_any_are_named(self) -> None:
        self.assertFalse(takes((["10de"], ["0000:89:00.0"], [])))
        self.assertFalse(takes((["10de"], [], ["10de:2330"])))
        self.assertTrue(takes((["10de"], ["0000:89:00.0"], ["10de:2335"])))
        self.assertTrue(takes((["10de"], ["0000:88:00.0"], ["10de:2330"])))

    def test_named_card_may_be_of_any_vendor(self) -> None:
        self.assertTrue(takes((["10de"], [], ["102b:0536"]), MATROX))
        self.assertTrue(takes((["10de"], ["0000:88:00.0"], []), MATROX))


class TestParse(base.BaseTestCase):
    def test_upper_case_and_spaces(self) -> None:
        self.assertTrue(takes((["10DE "], [], [])))
        self.assertTrue(takes(([], [" 0000:88:00.0"], [])))
        self.assertTrue(takes(([], [], ["10DE:2335 "])))

    def test_refused_with_option_value_and_remedy(self) -> None:
        for option, value, remedy in (
            ("vendors", "nvidia", "such as 10de for NVIDIA"),
            ("vendors", "0x10de", "without 0x"),
            ("addresses", "88:00.0", "such as 0000:88:00.0"),
            ("product_ids", "2335", "such as 10de:2335"),
            ("product_ids", "10de:2335:1", "such as 10de:2335"),
        ):
            options: dict[str, list[str]] = {"vendors": [], "addresses": [], "product_ids": []}
            options[option] = [value]
            error = self.assertRaises(exception.InvalidOption, selection.Selection.parse, **options)
            self.assertEqual((option, value), (error.option, error.value))
            self.assertIn(remedy, error.remedy)
