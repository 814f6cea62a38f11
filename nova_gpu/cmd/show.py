# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu show ADDRESS``: prints all facts about one card."""

from __future__ import annotations

import sys
from typing import Any

import prettytable

from nova_gpu.cmd import cards, holders, this_host
from nova_gpu.cmd.output import Format, print_json
from nova_gpu.core.model import PciAddress
from nova_gpu.host.pci import iommu
from nova_gpu.virt.inventory.discovery import Discovery

# Why facts may be unknown
_UNKNOWN = {
    "memory_mib": "only NVIDIA's NVML and [gpu]product tell it",
    "uuid": "only NVIDIA's driver here tells it",
}


def run(command: Any, _: list[str]) -> int:
    as_json = command.format == Format.JSON
    return main(this_host.discover(), command.address, as_json=as_json)


def main(discovery: Discovery, text: str, *, as_json: bool) -> int:
    """Print the facts about the card at the PCI address *text*.

    :returns: the exit status: 0, or 1 if no GPU has a PCI function there
    """
    address = PciAddress.parse(text)
    listed_cards = cards.read(discovery)
    card = next((card for card in listed_cards if address in card.gpu.functions), None)
    if card is None:
        print(
            f"nova-gpu: there is no GPU at {address}; see nova-gpu list for this host's GPUs.",
            file=sys.stderr,
        )
        return 1
    held, cells, unknown = holders.read(discovery, [card.gpu for card in listed_cards])
    described = cards.described(card, held, unknown, cells)
    described["functions"] = {
        str(function): _driver(function, discovery) for function in card.gpu.functions
    }
    if as_json:
        print_json(described)
    else:
        print(table(described, unknown))
    return 0


def _driver(function: PciAddress, discovery: Discovery) -> str | None:
    try:
        return iommu.driver(function, discovery.roots)
    except (OSError, ValueError) as error:
        return f"not readable: {error}"


def table(described: dict[str, Any], unknown: str | None) -> str:
    """Return a table of a card's facts, as :func:`nova_gpu.cmd.cards.described` returns them."""
    uuids = described["instances"]
    if uuids:
        texts = [holders.text(uuid, described["cells"]) for uuid in uuids]
        described = described | {"instances": texts}
    shown = prettytable.PrettyTable(["Field", "Value"], align="l", header=False)
    for key, value in described.items():
        if key not in ("companions", "driver", "cells"):  # other rows have them
            shown.add_row([key, _cell(key, value, unknown)])
    return str(shown.get_string())


def _cell(key: str, value: Any, unknown: str | None) -> str:
    match key, value:
        case "instances", None:
            return f"not known: {unknown}"
        case "functions", dict():
            return "\n".join(
                f"{item} bound to {driver or 'no driver'}" for item, driver in value.items()
            )
        case "links", [_, *_]:
            return "\n".join(f"{item['width']} {item['type']} to {item['peer']}" for item in value)
        case "vgpus", None:
            return "none: it is given whole"
        case "vgpus", list():
            return "\n".join(cards.vgpu_lines(value))
        case "instances", [_, *_]:
            return "\n".join(value)
        case _, []:
            return "none"
        case "pcie_switch" | "iommu_group" | "reason", None:
            return "none"
        case _, bool():
            return "yes" if value else "no"
    if value is None:
        return f"unknown: {_UNKNOWN[key]}" if key in _UNKNOWN else "unknown"
    return str(value)
