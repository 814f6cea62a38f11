# SPDX-License-Identifier: Apache-2.0
"""The [gpu] options that select the cards to offer, and options that have a value for each card."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from nova_gpu.core import exception, model
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host import products

_VENDOR = re.compile(r"[0-9a-f]{4}")
_Value = TypeVar("_Value")


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """The values of ``[gpu]vendors``, ``addresses`` and ``product_ids``, which select cards."""

    vendors: frozenset[str]
    addresses: frozenset[model.PciAddress] = frozenset()
    product_ids: frozenset[str] = frozenset()

    @classmethod
    def parse(
        cls, vendors: Iterable[str], addresses: Iterable[str], product_ids: Iterable[str]
    ) -> Selection:
        """Parse the values of the options that select cards."""
        return cls(
            vendors=frozenset(map(_vendor, vendors)),
            addresses=frozenset(map(_address, addresses)),
            product_ids=frozenset(map(_product_id, product_ids)),
        )

    def takes(self, address: model.PciAddress, product: model.Product, class_code: int) -> bool:
        """Return whether the options select the card.

        If ``addresses`` or ``product_ids`` name any card, only named cards are selected, whatever
        their vendor and class. Otherwise all GPUs of ``vendors`` are selected.
        """
        if self.addresses or self.product_ids:
            return self.names(address, product)
        is_gpu = products.is_gpu(product.vendor_id, class_code)
        return is_gpu and product.vendor_id in self.vendors

    def names(self, address: model.PciAddress, product: model.Product) -> bool:
        return address in self.addresses or product.key in self.product_ids


def _vendor(text: str) -> str:
    vendor = text.strip().lower()
    if not _VENDOR.fullmatch(vendor):
        raise exception.InvalidOption(
            "vendors",
            text,
            "it is not a PCI vendor id",
            "write four hexadecimal digits without 0x, such as 10de for NVIDIA",
        )
    return vendor


def _address(text: str) -> model.PciAddress:
    try:
        return model.PciAddress.parse(text.strip())
    except exception.InvalidPciAddress as error:
        raise exception.InvalidOption(
            "addresses",
            text,
            "it is not a PCI address",
            "write domain:bus:slot.function as lspci -D does, such as 0000:88:00.0",
        ) from error


def _product_id(text: str) -> str:
    key = products.parse_key(text.strip())
    if key is None:
        raise exception.InvalidOption(
            "product_ids",
            text,
            "it is not a product",
            "write vendor_id:product_id as lspci -n does, such as 10de:2335",
        )
    return ":".join(key)


def parse_by_card(
    option: str, entries: Iterable[str], read: Callable[[str], _Value], form: str
) -> Mapping[str, _Value]:
    """Return the values of an option by the card's address or product, which are the keys.

    If several entries have one key, the last one applies.

    :param entries: such as ``0000:3b:00.0=text`` or ``8086:56c0=text``
    :param read: parses the text of an entry; raises ValueError with the reason if it is invalid
    :param form: how to write an entry, for the error
    :raises InvalidOption: if an entry is invalid
    """
    by_card = {}
    for entry in entries:
        card, equals, text = (part.strip() for part in entry.rpartition("="))
        try:
            if not equals:
                raise ValueError("it has no =")
            by_card[_key(card)] = read(text)
        except ValueError as error:
            raise exception.InvalidOption(option, entry, str(error), form) from error
    return by_card


def _key(card: str) -> str:
    if product := products.parse_key(card):
        return ":".join(product)
    try:
        return str(PciAddress.parse(card))
    except exception.InvalidPciAddress as error:
        raise ValueError(f"{card!r} is neither an address nor a product") from error


def value_of(card: GPU, values: Mapping[str, _Value]) -> _Value | None:
    """Return the value of :func:`parse_by_card` for the card's address, else for its product."""
    return values.get(str(card.address), values.get(card.product.key))
