# SPDX-License-Identifier: Apache-2.0
"""Inventory and traits of groups of GPUs, as Placement stores them."""

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
    """The inventory of one group in Placement. ``max_unit`` limits one instance."""

    total: int
    reserved: int
    used: int
    max_unit: int | None = dataclasses.field(default=None, kw_only=True)

    @property
    def free(self) -> int:
        return max(self.total - self.reserved - self.used, 0)

    @property
    def most(self) -> int:
        """The most that one instance could get, in use or free."""
        return self.total if self.max_unit is None else min(self.total, self.max_unit)


def out_of_service(total: int, free: int, used: int) -> int:
    """Return how many GPUs of one or several groups are neither free nor used.

    The number reserved is not simply that: a card that failed while an instance has it is both
    reserved and used.
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

    :param most: how many of them one guest can have, if not all
    :returns: the body of one provider's inventories, keyed by resource class
    """
    return {
        resource_class: {
            "total": total,
            "reserved": min(reserved, total),
            "min_unit": 1,
            # Placement accepts no max_unit below 1. If one guest can have none, all of them are
            # reserved.
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
    """Return the traits for a group's provider; traits at *present* that others have set stay.

    :param hypervisor_type: what the host reports, ``LXC`` or ``QEMU``
    :param near: the values of ``gpu:near`` that some of the cards satisfy
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
    """Return the inventory of a vGPU type on cards with these *rooms*.

    What vGPUs of other types occupy of a card is reserved, so that the rest is what instances can
    get.

    :param most: how many of the type one guest can have, where that is known
    :returns: the body of one provider's inventories, keyed by resource class; empty if no card
        carries any, because Placement does not accept an inventory with a total of 0
    """
    listed = list(rooms)
    total = sum(room.total for room in listed)
    if not total:
        return {}
    reserved = sum(room.reserved for room in listed)
    return inventory(total, reserved, names.VGPU_RESOURCE_CLASS, most=most)


# Every claim calls this for each type, with the same hundreds of names.
@functools.lru_cache(maxsize=1024)
def type_traits(facts: VGPUType, standard: frozenset[str]) -> frozenset[str]:
    """Return the traits that a vGPU type adds to those of its cards' product.

    :param standard: the traits of os-traits. The result has each of them that names a resolution a
        head can show, and the one with the number of heads, if there is one.
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
