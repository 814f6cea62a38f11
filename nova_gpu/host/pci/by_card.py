# SPDX-License-Identifier: Apache-2.0
"""Options that say something of some cards: by PCI address, or by product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from nova_gpu.core import exception
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.pci import products

_Said = TypeVar("_Said")


def parse(
    option: str, entries: Iterable[str], read: Callable[[str], _Said], form: str
) -> Mapping[str, _Said]:
    """What is said of which card, by its address or product as :class:`GPU` has them.

    :param entries: each ``0000:3b:00.0=text`` or ``8086:56c0=text``
    :param read: of such a text; raises ValueError with the reason where it is none
    :param form: how an entry is to be written, for who has written another
    :raises InvalidOption: where an entry is not of its form
    """
    found = {}
    for entry in entries:
        card, equals, text = (part.strip() for part in entry.rpartition("="))
        try:
            if not equals:
                raise ValueError("it has no =")
            found[_key(card)] = read(text)
        except ValueError as error:
            raise exception.InvalidOption(option, entry, str(error), form) from error
    return found


def _key(card: str) -> str:
    if product := products.parse_key(card):
        return ":".join(product)
    try:
        return str(PciAddress.parse(card))
    except exception.InvalidPciAddress as error:
        raise ValueError(f"{card!r} is neither an address nor a product") from error


def said_of(card: GPU, said: Mapping[str, _Said]) -> _Said | None:
    """What is said of *card*; its address has precedence."""
    return said.get(str(card.address), said.get(card.product.key))
