# SPDX-License-Identifier: Apache-2.0
"""vGPU types of a host's cards, as NVIDIA's management library (NVML) reports them.

sysfs lists the names of the types that can be made now. Only NVML reports how many vGPUs of a type
a card carries and what each has. That matters most for a card in MIG mode, where vGPUs of a type
are made from the GPU instances of one profile, which the operator has made.
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
    """Return NVML's answer as text, for :func:`parse`; if NVML fails, the text has the reason.

    It needs root, because GPU instances are counted.
    """
    try:
        return nvml.run(["--vgpus", *map(str, addresses)], timeout_s).decode(errors="replace")
    except nvml.NoAnswer as error:
        return json.dumps({"error": str(error)})


def parse(answer: str) -> Mapping[PciAddress, Types]:
    """Parse NVML's answer into the vGPU types of each card, by type id.

    They include types that the present division of the card excludes. If there are none, one log
    line has the reason.
    """
    try:
        cards = nvml.read(answer.encode(), "cards")
    except nvml.NoAnswer as error:
        nvml.report(str(error))
        return {}
    return {address: _of_card(address, card) for address, card in cards.items()}


def _of_card(address: PciAddress, card: Mapping[str, Any]) -> Types:
    instances = nvml.told(address, "GPU instances", card, lambda c: c["instances"])
    listed = nvml.told(address, "vGPU types", card, lambda c: list(c["types"])) or []
    types = (
        nvml.told(address, "vGPU type", vgpu_type, functools.partial(_type, instances=instances))
        for vgpu_type in listed
    )
    return {vgpu_type.id: vgpu_type for vgpu_type in types if vgpu_type is not None}


def _type(fields: Mapping[str, Any], instances: Mapping[str, int | None] | None) -> VGPUType:
    """Parse one vGPU type.

    :raises TypeError, ValueError, LookupError: if it is invalid
    """
    memory, profile = nvml.known(int, fields["memory"]), nvml.known(int, fields["profile"])
    resolution = fields["resolution"]
    return VGPUType(
        f"nvidia-{int(fields['id'])}",
        nvml.known(str, fields["name"]),
        memory_mib=memory // 2**20 if memory else None,
        heads=nvml.known(int, fields["heads"]),
        resolution=(int(resolution[0]), int(resolution[1])) if resolution else None,
        per_card=min(_most(fields, profile, instances), MAX_PER_CARD),
        profile=profile,
        # 0 would mean that no guest can have any.
        per_guest=nvml.known(int, fields["per_guest"]) or None,
    )


def _most(
    fields: Mapping[str, Any], profile: int | None, instances: Mapping[str, int | None] | None
) -> int:
    """Return how many vGPUs of the type the card can have as it is divided now, 0 if none.

    A card in MIG mode can have the types of its GPU instances only, any other card none of these.
    """
    most = nvml.known(int, fields["most"]) or 0
    if (profile is None) != (instances is None):
        return 0
    if profile is None or instances is None:
        return most
    there = nvml.known(int, instances[str(profile)])
    if there is None:  # it could not be counted
        return most
    return min(most, there * (nvml.known(int, fields["per_instance"]) or 1))
