# SPDX-License-Identifier: Apache-2.0
"""The partitions of a board with NVSwitches and their instances, as the commands print them.

The public functions implement :class:`nova_gpu.cmd.board._Text`, which describes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.virt.card_sets import Sets
from nova_gpu_fabric.core.partitions import Partition
from nova_gpu_fabric.virt.board import Board
from nova_gpu_fabric.virt.fabric import Fabric


def _board(sets: Sets) -> Board | None:
    return sets.board if isinstance(sets, Fabric) else None


def of_card(sets: Sets, card: PciAddress) -> tuple[list[str], list[str]]:
    board = _board(sets)
    if board is None or card not in board.cards:
        return [], []
    remarks = []
    if card in board.modules:
        names = ", ".join(_short(partition) for partition in board.partitions_of(card))
        within = f", in the partitions {names}" if names else ""
        remarks = [f"it is module {board.modules[card]} of its board{within}"]
    return board.faults(), remarks


def _short(partition: Partition) -> str:
    return f"{partition.id} (of {partition.size}{', active' if partition.active else ''})"


def facts(sets: Sets, card: PciAddress) -> tuple[int | None, list[dict[str, Any]] | None]:
    board = _board(sets)
    if board is None:
        return None, None
    partitions = None
    if board.fabric:
        own = board.partitions_of(card)
        partitions = [{"id": p.id, "size": p.size, "active": p.active} for p in own]
    return board.modules.get(card), partitions


def table(
    sets: Sets, cards: Sequence[GPU], held: Mapping[PciAddress, tuple[str, ...]]
) -> Iterator[str]:
    """Yield the lines about partitions that ``nova-gpu topology`` prints below its tree of cards.

    :param held: the instances that have each card, by uuid
    """
    if (board := _board(sets)) is None:
        return
    yield ""
    yield "Partitions of its NVSwitches:"
    names = {card.address: f"GPU{number}" for number, card in enumerate(cards)}
    cards_of = board.cards_of()
    for partition in board.fabric.partitions if board.fabric else ():
        joined = cards_of.get(partition.id)
        modules = ", ".join(map(str, sorted(partition.modules)))
        members = (
            f"modules {modules}"
            if joined is None
            else " ".join(name for card, name in names.items() if card in joined)
        )
        yield f"  {partition.id:2}  {members}{_who(partition, joined, held)}"
    yield from (f"  {fault}" for fault in board.faults())


def _who(
    partition: Partition,
    cards: frozenset[PciAddress] | None,
    held: Mapping[PciAddress, tuple[str, ...]],
) -> str:
    if not partition.active:
        return ""
    uuids = sorted({uuid for card in cards or () for uuid in held.get(card, ())})
    return f"  active, instance {', '.join(uuids)}" if uuids else "  active"
