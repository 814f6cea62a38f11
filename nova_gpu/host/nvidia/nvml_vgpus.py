# SPDX-License-Identifier: Apache-2.0
"""vGPU types of a host's cards, as NVIDIA's management library (NVML) reports them.

sysfs has only the names of the types of which one more vGPU can be created now. NVML also reports
how many vGPUs of a type a card carries, and the size of each. On a card in MIG mode these are
limited by the GPU instances that the operator has created.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import MAX_PER_CARD, VGPUType
from nova_gpu.host.nvidia import nvml

Types = Mapping[str, VGPUType]


def ask(addresses: Iterable[PciAddress], timeout_s: float) -> str:
    """Return the probe's text about vGPU types, or why it failed, for :func:`parse`. Needs root."""
    try:
        return nvml.run(["--vgpus", *map(str, addresses)], timeout_s).decode(errors="replace")
    except nvml.NoAnswer as error:
        return json.dumps({"error": str(error)})


def parse(answer: str) -> Mapping[PciAddress, Types]:
    """Parse the text of :func:`ask` into the vGPU types of each card, by type id.

    A type that the card's present division excludes has ``per_card`` 0. If the text contains an
    error, log it once and return an empty mapping.
    """
    try:
        cards = nvml.read(answer.encode(), "cards")
    except nvml.NoAnswer as error:
        nvml.report(str(error))
        return {}
    return {address: _of_card(address, card) for address, card in cards.items()}


def _of_card(address: PciAddress, card: Mapping[str, Any]) -> Types:
    instances = nvml.parse_fact(address, "GPU instances", card, lambda c: c["instances"])
    listed = nvml.parse_fact(address, "vGPU types", card, lambda c: list(c["types"])) or []
    types = (
        nvml.parse_fact(
            address, "vGPU type", vgpu_type, functools.partial(_type, instances=instances)
        )
        for vgpu_type in listed
    )
    return {vgpu_type.id: vgpu_type for vgpu_type in types if vgpu_type is not None}


def _type(fields: Mapping[str, Any], instances: Mapping[str, int | None] | None) -> VGPUType:
    """Parse one vGPU type of the probe's output.

    *instances* are the card's GPU instances by profile, ``None`` if it is not in MIG mode.
    """
    memory, profile = nvml.checked(int, fields["memory"]), nvml.checked(int, fields["profile"])
    resolution = fields["resolution"]
    return VGPUType(
        f"nvidia-{int(fields['id'])}",
        nvml.checked(str, fields["name"]),
        memory_mib=memory // 2**20 if memory else None,
        heads=nvml.checked(int, fields["heads"]),
        resolution=(int(resolution[0]), int(resolution[1])) if resolution else None,
        per_card=min(_most(fields, profile, instances), MAX_PER_CARD),
        profile=profile,
        # 0 would mean that no guest can have any.
        per_guest=nvml.checked(int, fields["per_guest"]) or None,
        per_instance=nvml.checked(int, fields["per_instance"]) or None,
        places=tuple(int(place) for place in fields["places"]),
        place_size=nvml.checked(int, fields["place_size"]),
    )


def _most(
    fields: Mapping[str, Any], profile: int | None, instances: Mapping[str, int | None] | None
) -> int:
    """Return how many vGPUs of the type the card can have with its present GPU instances.

    A card in MIG mode can have only types with a profile, any other card only types without one;
    return 0 for the others.
    """
    most = nvml.checked(int, fields["most"]) or 0
    if (profile is None) != (instances is None):
        return 0
    if profile is None or instances is None:
        return most
    there = nvml.checked(int, instances[str(profile)])
    if there is None:  # it could not be counted
        return most
    return min(most, there * (nvml.checked(int, fields["per_instance"]) or 1))
