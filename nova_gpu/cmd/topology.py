# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu topology``: where the cards are, what joins them and which instance has which."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import prettytable

from nova_gpu.cmd import cards, fabric, holders
from nova_gpu.cmd.cards import Card
from nova_gpu.cmd.output import NO_CARDS, print_json
from nova_gpu.core.model import PciAddress
from nova_gpu.core.topology import nearness
from nova_gpu.virt.fabric.board import Board
from nova_gpu.virt.inventory import survey

_Held = Mapping[PciAddress, tuple[str, ...]]


def main(looked: survey.Survey, *, as_json: bool) -> int:
    """Prints the picture; returns 0, with cards or without.

    :raises DiscoveryFailed: where the host's cards cannot be listed
    """
    found = cards.read(looked)
    gpus = [each.gpu for each in found]
    held, unknown = holders.read(looked, gpus) if found else ({}, None)
    board = looked.delivery.board
    if as_json:
        print_json([{**described(c, held, unknown), **_on_board(c, board)} for c in found])
    elif found:
        print("\n".join([*picture(found, held, unknown), *fabric.table(board, gpus, held)]))
    else:
        print(NO_CARDS)
    return 0


def described(card: Card, held: _Held, unknown: str | None) -> dict[str, Any]:
    """One card as plain values: ``instances`` is null where libvirt was not heard."""
    uuids = None if unknown else list(held.get(card.gpu.address, ()))
    return {**cards.describe(card.gpu, card.reason, card.parts), "instances": uuids}


def _on_board(card: Card, board: Board | None) -> dict[str, Any]:
    """The card's place on a board with NVSwitches: ``module`` and ``partitions`` are null of a card
    that is on none, or whose place is not known."""
    module = board and board.modules.get(card.gpu.address)
    partitions = board.partitions_of(card.gpu.address) if board and board.fabric else None
    return {
        "module": module,
        "partitions": None
        if partitions is None
        else [{"id": p.id, "size": p.size, "active": p.active} for p in partitions],
    }


def picture(found: Sequence[Card], held: _Held, unknown: str | None) -> Iterator[str]:
    """The tree that the cards hang on and what is between each two of them, for people"""
    yield from _tree(found, held, unknown)
    if unknown:
        yield cards.not_known(unknown)
    if len(found) > 1:
        yield ""
        yield from _matrix(found)


def _tree(found: Sequence[Card], held: _Held, unknown: str | None) -> Iterator[str]:
    def path(card: Card) -> tuple[str, str, str]:
        gpu = card.gpu
        node = "NUMA node not known" if gpu.numa_node is None else f"NUMA node {gpu.numa_node}"
        switch = f"switch {gpu.pcie_switch}" if gpu.pcie_switch else ""
        return node, gpu.pci_root or "PCI root not known", switch

    name = max(len(each.gpu.product.name or each.gpu.product.key) for each in found)
    before: tuple[str, ...] = ()
    for where, here in itertools.groupby(sorted(found, key=path), key=path):
        for depth, part in enumerate(where):
            if part and where[: depth + 1] != before[: depth + 1]:
                yield f"{'  ' * depth}{part}"
        before = where
        indent = "  " * (3 if where[2] else 2)
        for card in here:
            gpu = card.gpu
            label = (gpu.product.name or gpu.product.key).ljust(name)
            who = _who(card, held.get(gpu.address, ()), unknown)
            yield f"{indent}GPU{found.index(card)}  {gpu.address}  {label}  {who}"


def _who(card: Card, uuids: Sequence[str], unknown: str | None) -> str:
    if uuids:
        who = f"instance {', '.join(uuids)}"
        return f"{who}; {card.reason}" if card.reason else who
    if card.reason:
        return f"not offered: {card.reason}"
    return "offered" if unknown else "free"


def _matrix(found: Sequence[Card]) -> Iterator[str]:
    labels = [f"GPU{number}" for number in range(len(found))]
    shown = prettytable.PrettyTable(["", *labels], border=False, align="l")
    for label, one in zip(labels, found, strict=True):
        row = ["X" if one is other else nearness.between(one.gpu, other.gpu) for other in found]
        shown.add_row([label, *row])
    yield from (line.rstrip() for line in shown.get_string().splitlines())
    text = shown.get_string()
    said = {key: what for key, what in nearness.LEGEND.items() if key.rstrip("#") in text}
    yield ""
    yield "; ".join(f"{key}: {what}" for key, what in said.items())
