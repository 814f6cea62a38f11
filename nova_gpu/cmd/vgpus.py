# SPDX-License-Identifier: Apache-2.0
"""What ``nova-gpu list`` says of the vGPUs that can be made of a card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nova_gpu.core.vgpu import vgpu_room
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind


def describe(card: DividedCard) -> list[dict[str, Any]]:
    """Each type as plain values; what is not known is ``None``.

    ``made`` is how many there are, whoever made them, ``available`` how many more its driver could
    make now. Of virtual functions without a type (``plain``) none is made, and ``available`` is how
    many there are, whoever has them. Of MIG instances (``mig``) all are made, by the operator.
    """
    return [
        {
            "type": type_id,
            "name": facts.name,
            "memory_mib": facts.memory_mib,
            "heads": facts.heads,
            "resolution": "x".join(map(str, facts.resolution)) if facts.resolution else None,
            "plain": all(parent.kind is Kind.PLAIN for parent in card.parents.values()),
            "mig": card.has_instances,
            "made": sum(parent.made.get(type_id, 0) for parent in card.parents.values()),
            "available": 0 if card.has_instances else vgpu_room.room(card, type_id).free,
        }
        for type_id, facts in sorted(card.types.items())
    ]


def lines(types: Sequence[dict[str, Any]]) -> Iterator[str]:
    """For people, one line for each type"""
    for each in types:
        made = f"{each['made']} made, {each['available']} more can be"
        if each["mig"]:
            made = f"{each['made']} MIG instances"
        facts = [f"{each['available']} virtual functions" if each["plain"] else made]
        if each["memory_mib"]:
            facts.append(f"{each['memory_mib']} MiB")
        if each["heads"]:
            facts.append(f"{each['heads']} heads")
        if each["resolution"]:
            facts.append(f"up to {each['resolution']}")
        name = f" ({each['name']})" if each["name"] else ""
        yield f"{each['type']}{name}: {', '.join(facts)}"
