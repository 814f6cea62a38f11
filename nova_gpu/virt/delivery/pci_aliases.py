# SPDX-License-Identifier: Apache-2.0
"""The cards in ``[pci]device_spec``, which Nova's own PCI passthrough gives, and not nova-gpu.

The option is read here, as ``nova.pci.whitelist`` takes most of Nova and 2.6 s of processor time to
import; a test compares the two. What is about functions of other devices than cards, such as
``devname``, matches none here.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nova_gpu.core import exception
from nova_gpu.core.flavor import parsers
from nova_gpu.core.model import PciAddress
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

_ANY = "*"
# The parts of an address in a pattern, each with its digits and its largest value
_PARTS = {"domain": (4, 0xFFFF), "bus": (2, 0xFF), "slot": (2, 0x1F), "function": (1, 0x7)}
_FLAGS = ("managed", "live_migratable", "one_time_use")
_REMEDY = "write it as Nova's option reference of [pci]device_spec says"


@dataclasses.dataclass(frozen=True, slots=True)
class _Spec:
    """One member of the option.

    ``stated``: it as the option has it. ``ids`` and ``address`` are regular expressions of the
    vendor id and the product id, and of the parts of an address. ``tags``: what else it says.
    """

    stated: Mapping[str, Any]
    ids: tuple[str, str]
    address: tuple[str, ...]
    tags: Mapping[str, str]

    @classmethod
    def parse(cls, stated: Mapping[str, Any]) -> _Spec:
        """Parse a member of the option.

        :raises ValueError: if it is invalid; the text has the reason
        """
        if not isinstance(stated, dict):
            raise ValueError(f"{stated!r} is no JSON object")
        tags = dict(stated)
        vendor_id, product_id = (
            _hexadecimal(tags.pop(name, _ANY), 4, 0xFFFF) for name in ("vendor_id", "product_id")
        )
        address = _address(tags.pop("address", None) or "*:*:*.*")
        for flag in _FLAGS:
            if tags.get(flag) is not None:
                value = parsers.boolean(str(tags[flag]))
                if value is None:
                    raise ValueError(f"{flag} is {tags[flag]!r}; it is neither true nor false")
                tags[flag] = str(value).lower()
        return cls(stated, (vendor_id, product_id), address, tags)

    def matches(self, ids: Sequence[str], addresses: Iterable[str]) -> bool:
        """Return whether it is about a function with these ids and with one of *addresses*.

        Nova matches virtual functions by the address of their card if it has no placeholders.
        """
        is_others = "devname" in self.tags or parsers.is_true(str(self.tags.get("remote_managed")))
        if is_others or not all(map(re.fullmatch, self.ids, ids)):
            return False
        own, *cards = (re.split("[:.]", address) for address in addresses)
        if not all(re.fullmatch(r"[0-9a-fA-F]*(\\Z)?", part) for part in self.address):
            cards = []
        return any(all(map(re.match, self.address, parts)) for parts in (own, *cards))


def _address(text: object) -> tuple[str, ...]:
    """Return regular expressions of domain, bus, slot and function.

    A JSON object has them itself, which match the beginning of each. A text has placeholders, and
    may lack the domain, or domain and bus.
    """
    if isinstance(text, Mapping):
        parts = tuple(str(text.get(name, ".*")) for name in _PARTS)
        for part in parts:
            re.compile(part)
        return parts
    place, _, function = str(text).partition(".")
    places = place.split(":") if place else []
    if len(places) > 3:
        raise ValueError(f"{text!r} is not a PCI address")
    texts = (*[_ANY] * (3 - len(places)), *places, function)
    return tuple(
        f"{_hexadecimal(part.strip() or _ANY, *limits)}\\Z"
        for part, limits in zip(texts, _PARTS.values(), strict=True)
    )


def _hexadecimal(text: object, digits: int, most: int) -> str:
    """Return the regular expression of a number, or of any."""
    if isinstance(text, str) and text.strip() == _ANY:
        return ".*"
    try:
        number = int(text, 16)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ValueError(f"{text!r} is no text of hexadecimal digits") from None
    if number > most:
        raise ValueError(f"{text!r} is above {most:x}")
    return f"{number:0{digits}x}"


class DeviceSpec:
    """The devices of ``[pci]device_spec``.

    :raises InvalidOption: if it cannot be parsed
    """

    def __init__(self, device_spec: Sequence[str]) -> None:
        self._specs: list[_Spec] = []
        for entry in device_spec:
            try:
                stated = json.loads(entry)
                members = stated if isinstance(stated, list) else [stated]
                self._specs += map(_Spec.parse, members)
            except (ValueError, re.error) as error:
                raise exception.InvalidOption(
                    "device_spec", entry, str(error), _REMEDY, group="pci"
                ) from error

    def obstacle(self, functions: Iterable[PciAddress], roots: Roots) -> str | None:
        """Return why a card is not offered: Nova may give one of these *functions* by this option.

        Return ``None`` if the option matches none of them.
        """
        for address in functions:
            if (spec := self._spec(address, roots)) is not None:
                return (
                    f"[pci]device_spec = {json.dumps(spec.stated)} lets Nova give "
                    f"{address} to instances with a pci_passthrough:alias, and "
                    "[DEFAULT]compute_driver lets nova-gpu give it too; take it out of the former "
                    "to have it offered (an instance that has it keeps it), or out of "
                    "[gpu]addresses"
                )
        return None

    def tags(self, address: PciAddress, roots: Roots) -> dict[str, str]:
        """Return what the option says of a function besides which one it is, such as its traits."""
        spec = self._spec(address, roots)
        return dict(spec.tags) if spec is not None else {}

    def _spec(self, address: PciAddress, roots: Roots) -> _Spec | None:
        """Return the first member of the option that matches a function, else ``None``."""
        if not self._specs:
            return None
        device = sysfs.device(address, roots)
        ids, card = sysfs.ids(device), sysfs.link(device, "physfn")
        addresses = [str(address), *([card] if card else ())]
        return next((spec for spec in self._specs if spec.matches(ids, addresses)), None)
