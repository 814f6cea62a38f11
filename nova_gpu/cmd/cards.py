# SPDX-License-Identifier: Apache-2.0
"""This host's cards, as ``nova-gpu`` and its exporter show them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import prettytable

from nova_gpu.cmd import card_facts, holders, host_check, options, this_host
from nova_gpu.cmd.output import NO_CARDS, Format, print_json
from nova_gpu.core import unavailability
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons, Source
from nova_gpu.core.vgpu import vgpu_capacity
from nova_gpu.core.vgpu.vgpu import DividedCard
from nova_gpu.host.state import proofs, quarantine
from nova_gpu.virt.health import failed_starts, monitor
from nova_gpu.virt.inventory.discovery import Discovery, of_all

_COLUMNS = (
    ("Address", "address"),
    ("Product", "product_id"),
    ("Name", "name"),
    ("Architecture", "architecture"),
    ("Memory MiB", "memory_mib"),
    ("NUMA", "numa_node"),
    ("IOMMU group", "iommu_group"),
    ("Driver", "driver"),
    ("Offered", "offered"),
    ("Instance", "instances"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """One card of the host, with the reasons why new instances do not get it.

    ``unavailable`` are these reasons. ``parts`` is the division of a card that is offered as vGPUs,
    else ``None``. ``dirty`` is why the card may be unclean after a guest: it is another reason,
    unless an instance has the card now.
    """

    gpu: GPU
    unavailable: Reasons = ()
    parts: DividedCard | None = None
    dirty: str | None = None

    @property
    def reason(self) -> str | None:
        """The first of ``unavailable`` as text, ``None`` if there is none.

        A repair that the card waits for says more than the fault.
        """
        repairs = (reason for reason in self.unavailable if reason.source is Source.REPAIR)
        reason = next(iter((*repairs, *self.unavailable)), None)
        return None if reason is None else str(reason)

    def why_not(
        self, held: Mapping[PciAddress, tuple[str, ...]], unknown: str | None
    ) -> str | None:
        """Return why the card is not offered to new instances, or ``None`` if it is.

        The parameters are those of :func:`described`.
        """
        if self.reason or not self.dirty or held.get(self.gpu.address):
            return self.reason
        return f"{self.dirty}, unless an instance has it" if unknown else self.dirty


def run(command: Any, _: list[str]) -> int:
    """Run ``nova-gpu list``: print all cards of this host; return 0."""
    discovery = this_host.discover()
    rows = read(discovery)
    gpus = [card.gpu for card in rows]
    held, cells, unknown = holders.read(discovery, gpus) if rows else ({}, {}, None)
    descriptions = [described(card, held, unknown, cells) for card in rows]
    if command.format == Format.JSON:
        print_json(descriptions)
    else:
        print(table(descriptions, unknown) if rows else NO_CARDS)
        sys.stdout.flush()
        print(f"nova-gpu: {options.files_told()}", file=sys.stderr)
    return 0


def read(discovery: Discovery, watch: monitor.Watch | None = None) -> list[Card]:
    """Return all cards, with the reasons for which nova-compute does not offer them.

    Reasons that only root may read are missing for other users.

    :param watch: a health monitor of earlier calls, which compares the cards with their state then
    :raises DiscoveryFailed: if the host's cards cannot be listed
    """
    gpus = discovery.find()
    watch = watch or monitor.Watch(discovery.roots, asks_nvml=discovery.delivery.shares_driver)
    parts, others = discovery.in_parts(gpus)
    divided = parts.keys() | others.keys()
    linked = discovery.joined_cards.beside_parts(
        (g for g in gpus if g.address not in divided), divided
    )
    reasons = unavailability.merge(
        quarantine.unavailable(discovery.quarantine, gpus, discovery.roots),
        watch.look(gpus),
        quarantine.unbound(discovery.deliveries.unbound, gpus),
        others,
        of_all(Source.DIVISION, linked),
        failed_starts.of_cards(gpus, parts, discovery.roots),
        discovery.kept_back(gpus),
    )
    left = [gpu for gpu in gpus if gpu.address not in reasons.keys() | parts.keys()]
    reasons |= host_check.unavailable(discovery, left)
    dirty = _dirty(discovery, [gpu for gpu in gpus if gpu.address not in parts])
    return [
        Card(gpu, reasons.get(gpu.address, ()), parts.get(gpu.address), dirty.get(gpu.address))
        for gpu in gpus
    ]


def _dirty(discovery: Discovery, gpus: Sequence[GPU]) -> dict[PciAddress, str]:
    """Return why cards may be unclean after a guest, by address; clean cards are not included.

    Not every user may read the proofs of cleaning.
    """
    seen = proofs.see(gpus, discovery.roots)
    return {
        gpu.address: f"{reason}; nova-compute cleans it in its next period, or says why it cannot"
        for gpu in gpus
        if (reason := proofs.missing(discovery.proofs, gpu.address, gpu, seen.get(gpu.address)))
    }


def described(
    card: Card,
    held: Mapping[PciAddress, tuple[str, ...]],
    unknown: str | None,
    cells: holders.NodesByGuest = MappingProxyType({}),
) -> dict[str, Any]:
    """Return one card as values for JSON; unknown values are ``None``.

    :param cells: the NUMA nodes of each guest's cells
    """
    uuids = held.get(card.gpu.address, ())
    reason = card.why_not(held, unknown)
    return {
        **card_facts.facts(card.gpu),
        "offered": reason is None,
        "reason": reason,
        "vgpus": None if card.parts is None else describe_vgpus(card.parts),
        "instances": None if unknown else list(uuids),
        "cells": {uuid: list(cells[uuid]) for uuid in uuids if uuid in cells},
    }


def table(cards: Sequence[dict[str, Any]], unknown: str | None = None) -> str:
    """Return a table of cards, and lines below it: vGPU types, and why cards are not offered."""
    shown = prettytable.PrettyTable([title for title, _ in _COLUMNS], align="l")
    for card in cards:
        row = card | ({"offered": "in parts"} if card["offered"] and card["vgpus"] else {})
        if card["instances"]:
            row["instances"] = [holders.text(uuid, card["cells"]) for uuid in card["instances"]]
        shown.add_row([_cell(key, row[key]) for _, key in _COLUMNS])
    lines = [shown.get_string()]
    for card in cards:
        lines += [f"{card['address']}: {line}" for line in vgpu_lines(card["vgpus"] or ())]
    addresses: dict[str, list[str]] = {}
    for card in cards:
        if card["reason"]:
            addresses.setdefault(card["reason"], []).append(card["address"])
    lines += [f"{', '.join(alike)}: {reason}" for reason, alike in addresses.items()]
    if unknown:
        lines.append(not_known(unknown))
    if any(card["architecture"] is None for card in cards):
        lines.append(
            "A GPU of unknown architecture satisfies no gpu_arch; [gpu]product says what it is."
        )
    if any(card["memory_mib"] is None for card in cards):
        lines.append(
            "Memory is unknown where neither NVML nor [gpu]product tells it; such a GPU satisfies "
            "no gpu:memory_mib."
        )
    return "\n".join(lines)


def not_known(reason: str) -> str:
    return f"Cannot tell which instance has which GPU: {reason}"


def _cell(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "\n".join(value) or "-"
    if key in ("driver", "numa_node", "iommu_group") and value is None:
        return "-"
    return "unknown" if value is None else str(value)


def describe_vgpus(card: DividedCard) -> list[dict[str, Any]]:
    """Return the vGPU types of *card* as values for JSON; unknown values are ``None``.

    ``made`` is how many vGPUs of the type exist, ``available`` how many more the driver could make
    now. For virtual functions without a type (``plain``), ``made`` is 0 and ``available`` is how
    many exist, in use or free. For MIG instances (``mig``), ``available`` is 0, because only the
    operator makes them.
    """
    return [
        {
            "type": type_id,
            "name": facts.name,
            "memory_mib": facts.memory_mib,
            "heads": facts.heads,
            "resolution": "x".join(map(str, facts.resolution)) if facts.resolution else None,
            "plain": all(parent.kind.is_plain for parent in card.parents.values()),
            "mig": card.has_instances,
            "made": sum(parent.made.get(type_id, 0) for parent in card.parents.values()),
            "available": 0 if card.has_instances else vgpu_capacity.room(card, type_id).free,
        }
        for type_id, facts in sorted(card.types.items())
        if facts.per_card != 0
    ]


def vgpu_lines(types: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield one line of text for each of *types*, which :func:`describe_vgpus` returned."""
    for vgpu_type in types:
        made = f"{vgpu_type['made']} made, {vgpu_type['available']} more possible"
        if vgpu_type["mig"]:
            made = f"{vgpu_type['made']} MIG instances"
        facts = [f"{vgpu_type['available']} virtual functions" if vgpu_type["plain"] else made]
        if vgpu_type["memory_mib"]:
            facts.append(f"{vgpu_type['memory_mib']} MiB")
        if vgpu_type["heads"]:
            facts.append(f"{vgpu_type['heads']} heads")
        if vgpu_type["resolution"]:
            facts.append(f"up to {vgpu_type['resolution']}")
        name = f" ({vgpu_type['name']})" if vgpu_type["name"] else ""
        yield f"{vgpu_type['type']}{name}: {', '.join(facts)}"
