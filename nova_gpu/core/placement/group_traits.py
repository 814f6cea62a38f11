# SPDX-License-Identifier: Apache-2.0
"""Traits of the provider of a group of GPUs or vGPUs in Placement."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from nova_gpu.core import names
from nova_gpu.core.model import Product
from nova_gpu.core.topology import topology
from nova_gpu.core.topology.topology import Islands
from nova_gpu.core.vgpu.vgpu import VGPUType

_HEADS = re.compile(rf"{names.TRAIT_DISPLAY_HEADS}([0-9]+)")
_RESOLUTION = re.compile(rf"{names.TRAIT_RESOLUTION}([0-9]+)H([0-9]+)")


def of_group(
    product: Product,
    hypervisor_type: str,
    present: Iterable[str],
    islands: Islands = topology.UNKNOWN,
    near: Iterable[str] = (),
) -> frozenset[str]:
    """Return the traits that the provider of a group of GPUs or vGPUs must have.

    :param present: the traits that the provider has now; those that the virt driver does not set
        are in the result too
    :param near: the values of ``gpu:near`` that some of the group's cards satisfy
    """
    others = {trait for trait in present if not names.is_own_trait(trait)}
    own = {
        names.TRAIT_GPU,
        names.trait(names.TRAIT_ARCHITECTURE, product.architecture),
        names.trait(names.TRAIT_HYPERVISOR, hypervisor_type),
        names.trait(names.TRAIT_MODEL, product.name),
        names.trait(names.TRAIT_MEMORY, product.memory_mib),
        f"{names.TRAIT_NUMA_ISLAND}{islands.numa}",
        f"{names.TRAIT_NVLINK_ISLAND}{islands.nvlink}",
        *(names.trait(names.TRAIT_NEAR, kind) for kind in near),
    }
    if product.compute_capability:
        major, minor = product.compute_capability
        own.add(f"{names.TRAIT_CUDA}{major}_{minor}")
    return frozenset(others | own)


# Every claim calls this for each type, with the same hundreds of names.
@functools.lru_cache(maxsize=1024)
def of_type(facts: VGPUType, standard: frozenset[str]) -> frozenset[str]:
    """Return the traits that a vGPU type adds to those of :func:`of_group`: its id, name, heads.

    :param standard: all traits of os-traits; the result includes those for its number of heads and
        for resolutions that they can show
    """
    own = {names.vgpu_type_trait(facts.id), names.trait(names.TRAIT_HEADS, facts.heads)}
    if facts.name:
        own.add(names.vgpu_type_trait(facts.name))
    for trait in standard:
        if match := _HEADS.fullmatch(trait):
            if int(match[1]) == facts.heads:
                own.add(trait)
        elif (match := _RESOLUTION.fullmatch(trait)) and facts.resolution:
            width, height = facts.resolution
            if int(match[1]) <= width and int(match[2]) <= height:
                own.add(trait)
    return frozenset(own)
