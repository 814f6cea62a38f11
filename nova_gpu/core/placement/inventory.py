# SPDX-License-Identifier: Apache-2.0
"""Groups of GPUs as Placement's facts: inventory and traits."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping

from nova_gpu.core import names
from nova_gpu.core.model import Product
from nova_gpu.core.topology import topology
from nova_gpu.core.topology.topology import Islands
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.core.vgpu.vgpu_capacity import Room

_HEADS = re.compile(rf"{names.TRAIT_DISPLAY_HEADS}([0-9]+)")
_RESOLUTION = re.compile(rf"{names.TRAIT_RESOLUTION}([0-9]+)H([0-9]+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """The inventory of one group in Placement; ``max_unit`` is the most of one instance."""

    total: int
    reserved: int
    used: int
    max_unit: int | None = dataclasses.field(default=None, kw_only=True)

    @property
    def free(self) -> int:
        return max(self.total - self.reserved - self.used, 0)

    @property
    def most(self) -> int:
        """The most that one instance can have, in use or free."""
        return self.total if self.max_unit is None else min(self.total, self.max_unit)


def out_of_service(total: int, free: int, used: int) -> int:
    """Return how many GPUs of one group, or of several, are neither free nor used.

    A reserved one may be used as well: a card that failed while an instance has it.
    """
    return max(total - free - used, 0)


def inventory(
    total: int,
    reserved: int,
    resource_class: str = names.RESOURCE_CLASS,
    *,
    most: int | None = None,
) -> Mapping[str, Mapping[str, int | float]]:
    """Return the inventory of a group of *total* GPUs or vGPUs, *reserved* of them unavailable.

    :param most: how many of them one guest can have, where it is not all
    :returns: the body of one provider's inventories, keyed by resource class
    """
    return {
        resource_class: {
            "total": total,
            "reserved": min(reserved, total),
            "min_unit": 1,
            # Placement takes none below 1. Where none can be had all of them are reserved.
            "max_unit": total if most is None else max(min(total, most), 1),
            "step_size": 1,
            "allocation_ratio": 1.0,
        }
    }


def traits(
    product: Product,
    hypervisor_type: str,
    present: Iterable[str],
    islands: Islands = topology.UNKNOWN,
    near: Iterable[str] = (),
) -> frozenset[str]:
    """Return the traits of a group, of those it has at *present* keeping what others have set.

    :param hypervisor_type: what the host reports, ``LXC`` or ``QEMU``
    :param near: what a flavor calls that some of the cards are near to
    """
    traits_ = {trait for trait in present if not names.is_own_trait(trait)}
    own = {
        names.TRAIT_GPU,
        names.architecture_trait(product.architecture),
        names.hypervisor_trait(hypervisor_type),
        names.model_trait(product.name),
        names.memory_trait(product.memory_mib),
        f"{names.TRAIT_NUMA_ISLAND}{islands.numa}",
        f"{names.TRAIT_NVLINK_ISLAND}{islands.nvlink}",
        *map(names.near_trait, near),
    }
    if product.compute_capability:
        major, minor = product.compute_capability
        own.add(f"{names.TRAIT_CUDA}{major}_{minor}")
    return frozenset(traits_ | own)


def inventory_of(
    rooms: Iterable[Room], *, most: int | None = None
) -> Mapping[str, Mapping[str, int | float]]:
    """Return the inventory of a group on cards with these *rooms*.

    What another type has of a card is reserved, so that what is left is what can be had.

    :param most: how many of the type one guest can have, where that is known
    :returns: the body of one provider's inventories, keyed by resource class; empty where no card
        carries any, because Placement takes no inventory of nothing
    """
    listed = list(rooms)
    total = sum(room.total for room in listed)
    if not total:
        return {}
    reserved = sum(room.reserved for room in listed)
    return inventory(total, reserved, names.VGPU_RESOURCE_CLASS, most=most)


# Asked in every claim, of each type, about the same hundreds of names.
@functools.lru_cache(maxsize=1024)
def type_traits(facts: VGPUType, standard: frozenset[str]) -> frozenset[str]:
    """Return what the type adds to the traits of its cards' product.

    :param standard: the traits of os-traits: every resolution that a head of it can show is set,
        and the number of heads where it is one of those that have a trait
    """
    own = {names.vgpu_type_trait(facts.id), names.heads_trait(facts.heads)}
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
