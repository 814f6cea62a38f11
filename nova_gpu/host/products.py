# SPDX-License-Identifier: Apache-2.0
"""GPU products by PCI ids, from the option ``[gpu]product`` and from the built-in table.

The table does not have the memory, because cards with one product id differ in it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping

from nova_gpu import data
from nova_gpu.core import exception, model, vendors

# Base class and subclass of displays (VGA, 3D, other) and of processing accelerators, as in the
# kernel's include/linux/pci_ids.h
_VGA, _3D, _OTHER_DISPLAY, _ACCELERATOR = 0x0300, 0x0302, 0x0380, 0x1200
_DISPLAYS = frozenset({_VGA, _3D, _OTHER_DISPLAY})
CLASSES = _DISPLAYS | {_ACCELERATOR}

OPTION = "product"

_REMEDY = (
    "write vendor_id:product_id architecture=WORD memory_mib=MIB name=TEXT, with at least one of "
    "the three and the name last, for example 10de:2335 architecture=hopper name=H200 SXM; for one "
    "kind of board append its subsystem ids, and provider=own to offer it apart from the others: "
    "10de:25b6:10de:157e provider=own name=A2"
)
_KEY = re.compile(r"([0-9a-f]{4}):([0-9a-f]{4})", re.IGNORECASE)
_BOARD = re.compile(rf"{_KEY.pattern}((?::[0-9a-f]{{4}}){{2}})?", re.IGNORECASE)
_OWN_PROVIDER = "provider=own"
_MEMORY = re.compile(r"0*[1-9][0-9]{0,8}")
_ARCHITECTURE = re.compile(r"[a-z0-9][a-z0-9_-]*")
_MAKERS = re.compile(
    rf"""^({
        "|".join(
            name
            for vendor in vendors.VENDORS.values()
            for name in (vendor.name.lower(), *vendor.names)
        )
    })\b(\(r\))?\s*"""
)


def is_gpu(vendor_id: str, class_code: int) -> bool:
    """Return whether a function is a GPU, which needs no naming in ``[gpu]`` to be offered."""
    kind = class_code >> 8
    return kind in _DISPLAYS or (kind == _ACCELERATOR and vendors.of(vendor_id).has_accelerators)


def parse_key(text: str) -> tuple[str, str] | None:
    """Parse ``10de:2335`` into vendor id and product id; return ``None`` for any other text."""
    match = _KEY.fullmatch(text)
    return (match[1].lower(), match[2].lower()) if match else None


def short_name(name: str | None) -> str | None:
    """Return a product's name without its vendor: ``NVIDIA H200`` becomes ``H200``."""
    words = " ".join((name or "").split())
    maker = _MAKERS.match(words.lower())
    return (words[maker.end() :] if maker else words) or None


@functools.cache
def table() -> Mapping[str, model.Product]:
    """Return the built-in products by key (``10de:2335``). The file is read once."""
    products = {}
    for vendor_id, product_id, architecture, name in data.products():
        product = model.Product(vendor_id, product_id, short_name(name), architecture or None)
        products[product.key] = product
    return products


def parse_overrides(lines: Iterable[str]) -> Mapping[str, model.Product]:
    """Return the products that the lines of ``[gpu]product`` describe, by key (``10de:2335``).

    The key of one kind of board has its subsystem ids, too: ``10de:25b6:10de:157e``.

    :raises InvalidOption: if a line is invalid or a product or kind of board has two lines
    """
    products: dict[str, model.Product] = {}
    for line in lines:
        key, product = _parse_override(line)
        if key in products:
            raise _invalid(line, f"{key} is described twice")
        products[key] = product
    return products


def _parse_override(line: str) -> tuple[str, model.Product]:
    ids, _, rest = line.strip().partition(" ")
    match = _BOARD.fullmatch(ids.lower())
    if match is None:
        raise _invalid(line, f"{ids!r} is not vendor_id:product_id of four hexadecimal digits each")
    key = match[1], match[2]
    words, _, name = f" {rest}".partition(" name=")
    architecture, memory_mib, board = None, None, None
    seen = set()
    for word in words.split():
        fact, _, value = word.partition("=")
        if fact in seen:
            raise _invalid(line, f"{fact} is given twice")
        seen.add(fact)
        if fact == "architecture" and _ARCHITECTURE.fullmatch(value.lower()):
            architecture = value.lower()
        elif fact == "memory_mib" and _MEMORY.fullmatch(value):
            memory_mib = int(value)
        elif word == _OWN_PROVIDER and match[3]:
            board = match[3].removeprefix(":")
        elif word == _OWN_PROVIDER:
            raise _invalid(line, f"{word} is for a kind of board, and the line has no subsystem")
        elif fact in ("architecture", "memory_mib"):
            wanted = "one word" if fact == "architecture" else "a number of MiB above 0"
            raise _invalid(line, f"{fact} must be {wanted}, not {value!r}")
        else:
            raise _invalid(line, f"{word!r} is not a fact about a product")
    product = model.Product(*key, name.strip() or None, architecture, memory_mib, board=board)
    if product == model.Product(*key):
        raise _invalid(line, "it says nothing about the product")
    return ids.lower(), product


def _invalid(line: str, reason: str) -> exception.InvalidOption:
    return exception.InvalidOption(OPTION, line, reason, _REMEDY)
