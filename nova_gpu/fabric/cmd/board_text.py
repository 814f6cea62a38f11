# SPDX-License-Identifier: Apache-2.0
"""The partitions of a board with NVSwitches, and who has them, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.sets.partitions import Partition
from nova_gpu.fabric.virt.board import Board


def of_card(board: Board, card: PciAddress) -> Iterator[str]:
    """Which module of the board a card is, and its partitions"""
    if card not in board.modules:
        return
    found = ", ".join(_short(each) for each in board.partitions_of(card))
    within = f", in the partitions {found}" if found else ""
    yield f"it is module {board.modules[card]} of its board{within}"


def _short(each: Partition) -> str:
    return f"{each.id} (of {each.size}{', active' if each.active else ''})"


def table(
    board: Board | None, found: Sequence[GPU], held: Mapping[PciAddress, tuple[str, ...]]
) -> Iterator[str]:
    """The partitions below the tree of ``nova-gpu topology``.

    :param held: the instances that have each card, where that is known
    """
    if board is None:
        return
    yield ""
    yield "Partitions of its NVSwitches:"
    names = {each.address: f"GPU{number}" for number, each in enumerate(found)}
    cards_of = board.cards_of()
    for each in board.fabric.partitions if board.fabric else ():
        cards = cards_of.get(each.id)
        modules = ", ".join(map(str, sorted(each.modules)))
        members = (
            f"modules {modules}"
            if cards is None
            else " ".join(name for card, name in names.items() if card in cards)
        )
        yield f"  {each.id:2}  {members}{_who(each, cards, held)}"
    yield from (f"  {fault}" for fault in board.faults())


def _who(
    each: Partition,
    cards: frozenset[PciAddress] | None,
    held: Mapping[PciAddress, tuple[str, ...]],
) -> str:
    if not each.active:
        return ""
    uuids = sorted({uuid for card in cards or () for uuid in held.get(card, ())})
    return f"  active, instance {', '.join(uuids)}" if uuids else "  active"
