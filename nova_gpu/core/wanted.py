# SPDX-License-Identifier: Apache-2.0
"""What a request asks for, in words for who reads a table, a fault or an error."""

from __future__ import annotations

from nova_gpu.core import names
from nova_gpu.core.request import GPURequest
from nova_gpu.core.request_group import GroupRequest

# What the user has asked for in the flavor's words, where that is not the word itself.
_NOUNS = {names.GPU_ARCH: "architecture", names.HYPERVISOR: "hypervisor"}


def gpus(request: GPURequest, group: GroupRequest, noun: str = "GPUs") -> str:
    """``GPUs (architecture fermi)``, without their number"""
    parts = []
    # What the request filter has made traits of is told in the flavor's words.
    implied = set()
    for key, condition, prefix in request.conditions(group):
        parts.append(f"{_NOUNS.get(key, key)} {condition}")
        implied.add(prefix)
    parts += sorted(
        trait
        for trait in group.required_traits
        if trait != names.TRAIT_GPU and not trait.startswith(tuple(implied))
    )
    parts += sorted(
        f"not {trait}" for trait in group.forbidden_traits if not trait.startswith(tuple(implied))
    )
    return f"{noun} ({', '.join(parts)})" if parts else noun


def all_of(request: GPURequest) -> str:
    """``1 GPU (architecture fermi) and 2 GPUs``: each group of the request, with its number"""
    return " and ".join(
        f"{group.count} {gpus(request, group, 'GPU' if group.count == 1 else 'GPUs')}"
        for group in request.groups
    )
