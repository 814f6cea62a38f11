# SPDX-License-Identifier: Apache-2.0
"""Texts that describe a request for GPUs in a table, a fault or an error."""

from __future__ import annotations

from nova_gpu.core import names
from nova_gpu.core.flavor import gpu_extra_specs
from nova_gpu.core.flavor.request import Request
from nova_gpu.core.flavor.request_group import GroupRequest

# Nouns that replace the name of a word in a summary.
_NOUNS = {word.name: word.noun for word in gpu_extra_specs.WORDS if word.noun}
_KINDS = {names.RESOURCE_CLASS: "GPU", names.VGPU_RESOURCE_CLASS: "vGPU"}


def kind(request: Request, count: int = 2) -> str:
    """Return ``GPU`` or ``vGPU``, in the plural unless *count* is 1."""
    return kind_of(request.resource_class, count)


def kind_of(resource_class: str, count: int = 2) -> str:
    return _KINDS[resource_class] + ("" if count == 1 else "s")


def gpus(request: Request, group: GroupRequest, count: int = 2) -> str:
    """Return what *group* requests, without the number: ``GPUs (architecture fermi)``."""
    noun = kind(request, count)
    parts = []
    # Traits that the request filter derived from a word are shown as that word.
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


def all_of(request: Request) -> str:
    """Return what all groups request: ``1 GPU (architecture fermi) and 2 GPUs``."""
    return " and ".join(
        f"{group.count} {gpus(request, group, group.count)}" for group in request.groups
    )
