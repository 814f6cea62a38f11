# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu topology``: prints the PCI tree with the cards, their links, and their instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nova_gpu.cmd import board, card_facts, cards, holders, this_host
from nova_gpu.cmd.cards import Card
from nova_gpu.cmd.output import NO_CARDS, Format, print_json
from nova_gpu.core.model import PciAddress
from nova_gpu.virt.inventory.discovery import Discovery

_Held = Mapping[PciAddress, tuple[str, ...]]


def run(command: Any, _: list[str]) -> int:
    return main(this_host.discover(), as_json=command.format == Format.JSON)


def main(discovery: Discovery, *, as_json: bool) -> int:
    """Print the PCI tree and the links of the cards; return 0, even without cards."""
    listed_cards = cards.read(discovery)
    gpus = [card.gpu for card in listed_cards]
    held, cells, unknown = holders.read(discovery, gpus) if listed_cards else ({}, {}, None)
    sets = discovery.deliveries.sets
    if as_json:
        described = [cards.described(card, held, unknown, cells) for card in listed_cards]
        for card, gpu in zip(described, gpus, strict=True):
            card["module"], card["partitions"] = board.text().facts(sets, gpu.address)
        print_json(described)
    elif listed_cards:
        print(
            "\n".join(
                [
                    *picture(listed_cards, held, unknown, cells),
                    *board.text().table(sets, gpus, held),
                ]
            )
        )
    else:
        print(NO_CARDS)
    return 0


def picture(
    listed_cards: Sequence[Card],
    held: _Held,
    unknown: str | None,
    cells: holders.NodesByGuest = MappingProxyType({}),
) -> Iterator[str]:
    """Yield the lines of the PCI tree with the cards, and of the table of paths between them."""
    gpus = [card.gpu for card in listed_cards]
    whose = {card.gpu.address: _who(card, held, unknown, cells) for card in listed_cards}
    yield from card_facts.tree(gpus, whose)
    if unknown:
        yield cards.not_known(unknown)
    yield from card_facts.matrix(gpus)


def _who(card: Card, held: _Held, unknown: str | None, cells: holders.NodesByGuest) -> str:
    reason = card.why_not(held, unknown)
    if uuids := held.get(card.gpu.address):
        who = f"instance {', '.join(holders.text(uuid, cells) for uuid in uuids)}"
        return f"{who}; {reason}" if reason else who
    if reason:
        return f"not offered: {reason}"
    return "offered" if unknown else "free"
