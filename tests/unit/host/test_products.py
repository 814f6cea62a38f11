# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from oslotest import base

from nova_gpu.core import exception, model, vendors
from nova_gpu.host import products


class TestTable(base.BaseTestCase):
    def test_every_line_is_a_product_of_its_key(self) -> None:
        self.assertGreater(len(products.table()), 1000)
        for key, product in products.table().items():
            self.assertEqual((product.vendor_id, product.product_id), products.parse_key(key))
            self.assertTrue(product.name and product.architecture, key)
            self.assertIsNone(product.memory_mib, key)
            self.assertIn(product.vendor_id, vendors.VENDORS)


class TestShortName(base.BaseTestCase):
    def test_maker_and_spaces_go(self) -> None:
        for name, expected in (
            ("NVIDIA H200", "H200"),
            ("NVIDIA GeForce  RTX 3090 ", "GeForce RTX 3090"),
            ("Tesla M2090", "Tesla M2090"),
            ("AMD Instinct MI300X", "Instinct MI300X"),
            ("Intel(R) Data Center GPU Max 1550", "Data Center GPU Max 1550"),
            ("Nvidiana 7", "Nvidiana 7"),
            ("NVIDIA", None),
            ("", None),
            (None, None),
        ):
            self.assertEqual(expected, products.short_name(name), repr(name))


class TestParseOverrides(base.BaseTestCase):
    def test_a_product_and_one_kind_of_board(self) -> None:
        line = "10DE:2335 architecture=Hopper memory_mib=143771 name=H200 SXM = fast"
        boards = ("10DE:25B6:10de:157E name=A2", "10de:25b6:10DE:14a9 provider=own name=A16")
        overrides = products.parse_overrides([line, *boards])
        self.assertEqual(
            {
                "10de:2335": model.Product("10de", "2335", "H200 SXM = fast", "hopper", 143771),
                "10de:25b6:10de:157e": model.Product("10de", "25b6", "A2"),
                "10de:25b6:10de:14a9": model.Product("10de", "25b6", "A16", board="10de:14a9"),
            },
            dict(overrides),
        )

    def test_refused_with_option_line_reason_and_remedy(self) -> None:
        for line, reason in (
            ("", "'' is not vendor_id:product_id"),
            ("0x10de:2335 name=A", "'0x10de:2335' is not vendor_id:product_id"),
            ("10de:25b6:10de name=A", "'10de:25b6:10de' is not vendor_id:product_id"),
            *((f"10de:2335{what}", "says nothing about the product") for what in ("", " name=")),
            *(
                (f"10de:2335 architecture={name}", f"architecture must be one word, not '{name}'")
                for name in ("", "a/b")
            ),
            *(
                (f"10de:2335 memory_mib={size}", f"must be a number of MiB above 0, not '{size}'")
                for size in ("80GB", "0", "\u00b2")
            ),
            *((f"10de:2335 {word}", f"'{word}' is not a fact") for word in ("color=red", "fast")),
            ("10de:2335 memory_mib=1 memory_mib=2", "memory_mib is given twice"),
            ("10de:2335 provider=own", "the line has no subsystem"),
            ("10de:2335:10de:16c1 provider=all", "'provider=all' is not a fact"),
        ):
            error = self.assertRaises(exception.InvalidOption, products.parse_overrides, [line])
            self.assertEqual(("product", line), (error.option, error.value))
            self.assertIn(reason, error.reason)
            self.assertIn("for example 10de:2335 architecture=hopper", error.remedy)

    def test_a_product_described_twice_is_refused(self) -> None:
        lines = ["10de:2335 name=A", "10DE:2335 name=B"]
        error = self.assertRaises(exception.InvalidOption, products.parse_overrides, lines)
        self.assertEqual("10de:2335 is described twice", error.reason)
