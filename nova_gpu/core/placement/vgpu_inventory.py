# SPDX-License-Identifier: Apache-2.0
"""Groups of vGPUs of one type as Placement's facts: inventory and traits."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping

from nova_gpu.core import names
from nova_gpu.core.placement import inventory
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.core.vgpu.vgpu_room import Room

_HEADS = re.compile(rf"{names.TRAIT_DISPLAY_HEADS}([0-9]+)")
_RESOLUTION = re.compile(rf"{names.TRAIT_RESOLUTION}([0-9]+)H([0-9]+)")


def inventory_of(rooms: Iterable[Room]) -> Mapping[str, Mapping[str, int | float]]:
    """The inventory of a group on cards with these *rooms*.

    What another type has of a card is reserved, so that what is left is what can be had.

    :returns: the body of one provider's inventories, keyed by resource class; empty where no card
        carries any, because Placement takes no inventory of nothing
    """
    listed = list(rooms)
    total = sum(room.total for room in listed)
    if not total:
        return {}
    reserved = sum(room.reserved for room in listed)
    return inventory.inventory(total, reserved, names.VGPU_RESOURCE_CLASS)


# Asked in every claim, of each type, about the same hundreds of names.
@functools.lru_cache(maxsize=1024)
def traits(facts: VGPUType, standard: frozenset[str]) -> frozenset[str]:
    """What the type adds to the traits of its cards' product.

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
