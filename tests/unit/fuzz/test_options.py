# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from nova_gpu.core import exception, model
from nova_gpu.core.placement import group_traits
from nova_gpu.core.vgpu import vgpu
from nova_gpu.host import products
from nova_gpu.host.mig import mig_layout
from nova_gpu.host.pci import selection
from nova_gpu.host.vgpu import virtual_functions
from tests.fixtures.bases import fuzz as base

_IDS = st.from_regex(r"[0-9a-fA-F]{4}", fullmatch=True)
_VENDORS = st.lists(_IDS | base.TEXT | st.sampled_from(["0x10de", " 10de ", "10dé"]), max_size=3)
_ADDRESSES = st.lists(
    st.from_regex(r"[0-9a-fA-F]{4,8}:[0-9a-f]{2}:[0-3][0-9a-f]\.[0-9]", fullmatch=True) | base.TEXT,
    max_size=3,
)
_KEYS = st.tuples(_IDS, _IDS).map(":".join) | base.TEXT
_FACTS = st.sampled_from(
    [
        *("architecture=hopper", "architecture=", "name=H200 SXM", "name=", "=", "name"),
        *(f"memory_mib={value}" for value in ("0", "1", "\u0663", "9" * 5000)),
    ]
)
_LINES = st.lists(
    st.tuples(_KEYS, st.lists(_FACTS | base.TEXT, max_size=3)).map(
        lambda parts: " ".join([parts[0], *parts[1]])
    ),
    max_size=3,
)
_FUNCTIONS = st.lists(
    st.tuples(
        _KEYS | st.just("0000:3b:00.0"),
        st.sampled_from(["4", "0", "1g.18gb+me", "1g/9", "\u0664", "9" * 5000, ""]),
    ).map("=".join)
    | base.TEXT,
    max_size=3,
)


class OptionsTest(base.FuzzTestCase):
    @base.fuzzed(vendors=_VENDORS, addresses=_ADDRESSES, product_ids=st.lists(_KEYS, max_size=3))
    def test_selection(
        self, vendors: Sequence[str], addresses: Sequence[str], product_ids: Sequence[str]
    ) -> None:
        try:
            chosen = selection.Selection.parse(vendors, addresses, product_ids)
        except exception.InvalidOption as error:
            options = {"vendors": vendors, "addresses": addresses, "product_ids": product_ids}
            self.assertIn(error.value, options[error.option])
            return
        for text in addresses:
            address = model.PciAddress.parse(text.strip())
            self.assertTrue(chosen.names(address, model.Product("ffff", "ffff")))
            self.assertEqual(address, model.PciAddress.parse(str(address)))

    @base.fuzzed(lines=_LINES)
    def test_products(self, lines: Sequence[str]) -> None:
        try:
            described = products.parse_overrides(lines)
        except exception.InvalidOption as error:
            self.assertIn(error.value, lines)
            return
        for product in described.values():
            self.assertTrue(product.name or product.architecture or product.memory_mib)
            for trait in group_traits.of_group(product, "LXC", ()):
                self.assertRegex(trait, r"\A[A-Z0-9_]{1,255}\Z")

    @base.fuzzed(entries=_FUNCTIONS)
    def test_virtual_functions(self, entries: Sequence[str]) -> None:
        try:
            numbers = virtual_functions.parse(entries)
        except exception.InvalidOption as error:
            self.assertIn(error.value, entries)
            return
        for number in numbers.values():
            self.assertGreater(number, 0)

    @base.fuzzed(entries=_FUNCTIONS)
    def test_mig_profile(self, entries: Sequence[str]) -> None:
        try:
            profiles = mig_layout.parse_profiles(entries)
        except exception.InvalidOption as error:
            self.assertIn(error.value, entries)
            return
        for profile in profiles.values():
            self.assertTrue(vgpu.is_type_id(profile))
