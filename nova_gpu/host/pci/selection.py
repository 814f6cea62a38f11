# SPDX-License-Identifier: Apache-2.0
"""Which of the host's cards the operator offers, and what options say of some of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from nova_gpu.core import exception, model
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host import products

_VENDOR = re.compile(r"[0-9a-f]{4}")
_Said = TypeVar("_Said")


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """The options ``[gpu]vendors``, ``addresses`` and ``product_ids`` (as ``10de:2335``)."""

    vendors: frozenset[str]
    addresses: frozenset[model.PciAddress] = frozenset()
    product_ids: frozenset[str] = frozenset()

    @classmethod
    def parse(
        cls, vendors: Iterable[str], addresses: Iterable[str], product_ids: Iterable[str]
    ) -> Selection:
        """Parse the options that select cards.

        :raises InvalidOption: where an element of an option is not of its form
        """
        return cls(
            vendors=frozenset(map(_vendor, vendors)),
            addresses=frozenset(map(_address, addresses)),
            product_ids=frozenset(map(_product_id, product_ids)),
        )

    def takes(self, address: model.PciAddress, product: model.Product, class_code: int) -> bool:
        """Return whether the card is the operator's to offer.

        One that is named is, of any vendor and any kind of accelerator. Where any are named no
        others are. Else its vendor decides, and whether it is a GPU.
        """
        if self.addresses or self.product_ids:
            return self.names(address, product)
        is_gpu = products.is_gpu(product.vendor_id, class_code)
        return is_gpu and product.vendor_id in self.vendors

    def names(self, address: model.PciAddress, product: model.Product) -> bool:
        """Return whether the card is named, by its address or its product."""
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
    option: str, entries: Iterable[str], read: Callable[[str], _Said], form: str
) -> Mapping[str, _Said]:
    """Return the value for each card, by its address or product as in :class:`GPU`.

    :param entries: each ``0000:3b:00.0=text`` or ``8086:56c0=text``
    :param read: of such a text; raises ValueError with the reason where it is none
    :param form: how an entry is to be written, for who has written another
    :raises InvalidOption: where an entry is not of its form
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


def said_of(card: GPU, statements: Mapping[str, _Said]) -> _Said | None:
    """Return what is said of *card*; its address has precedence."""
    return statements.get(str(card.address), statements.get(card.product.key))
