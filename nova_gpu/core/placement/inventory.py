# SPDX-License-Identifier: Apache-2.0
"""Inventories of groups of GPUs and vGPUs in Placement."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from nova_gpu.core import names
from nova_gpu.core.vgpu.vgpu_capacity import CardCapacity


@dataclasses.dataclass(frozen=True, slots=True)
class Inventory:
    """The inventory and usage of one group's provider in Placement, in numbers of GPUs or vGPUs.

    ``max_unit`` is how many one instance can get, ``None`` if not limited.
    """

    total: int
    reserved: int
    used: int
    max_unit: int | None = dataclasses.field(default=None, kw_only=True)

    @property
    def free(self) -> int:
        return max(self.total - self.reserved - self.used, 0)

    @property
    def most(self) -> int:
        """The number that one instance could get if all were free."""
        return self.total if self.max_unit is None else min(self.total, self.max_unit)


def out_of_service(total: int, free: int, used: int) -> int:
    """Return how many GPUs are neither free nor used: a reserved card may also be in use."""
    return max(total - free - used, 0)


def inventory(
    total: int,
    reserved: int,
    resource_class: str = names.RESOURCE_CLASS,
    *,
    most: int | None = None,
) -> Mapping[str, Mapping[str, int | float]]:
    """Return the inventory of a group with *total* GPUs or vGPUs, of which *reserved* are reserved.

    :param most: how many of them one guest can have, ``None`` for all
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


def inventory_of(
    rooms: Iterable[CardCapacity], *, most: int | None = None
) -> Mapping[str, Mapping[str, int | float]]:
    """Return the inventory of a group of vGPUs, the sum over its cards.

    :param most: how many of the type one guest can have, ``None`` if unknown
    :returns: the body of one provider's inventories, keyed by resource class; empty if no card
        carries any, because Placement does not accept an inventory with a total of 0
    """
    listed = list(rooms)
    total = sum(room.total for room in listed)
    if not total:
        return {}
    reserved = sum(room.reserved for room in listed)
    return inventory(total, reserved, names.VGPU_RESOURCE_CLASS, most=most)
