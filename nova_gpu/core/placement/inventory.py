# SPDX-License-Identifier: Apache-2.0
"""Groups of GPUs as Placement's facts: inventory and traits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from nova_gpu.core import names
from nova_gpu.core.model import Product
from nova_gpu.core.topology import topology
from nova_gpu.core.topology.topology import Islands


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """What one group has in Placement."""

    total: int
    reserved: int
    used: int

    @property
    def free(self) -> int:
        return max(self.total - self.reserved - self.used, 0)


def out_of_service(total: int, free: int, used: int) -> int:
    """The GPUs of one group, or of several, that nobody can get. What is reserved may be in use as
    well, as a card that went bad while an instance has it."""
    return max(total - free - used, 0)


def inventory(
    total: int, reserved: int, resource_class: str = names.RESOURCE_CLASS
) -> Mapping[str, Mapping[str, int | float]]:
    """The inventory of a group of *total* GPUs, or vGPUs, of which *reserved* cannot be had.

    :returns: the body of one provider's inventories, keyed by resource class
    """
    return {
        resource_class: {
            "total": total,
            "reserved": min(reserved, total),
            "min_unit": 1,
            "max_unit": total,
            "step_size": 1,
            "allocation_ratio": 1.0,
        }
    }


def traits(
    product: Product,
    hypervisor_type: str,
    present: Iterable[str],
    islands: Islands = topology.UNKNOWN,
) -> frozenset[str]:
    """The traits of a group, of those it has at *present* keeping what others have set.

    :param hypervisor_type: what the host reports, ``LXC`` or ``QEMU``
    """
    kept = {trait for trait in present if not names.is_own_trait(trait)}
    own = {
        names.TRAIT_GPU,
        names.architecture_trait(product.architecture),
        names.hypervisor_trait(hypervisor_type),
        names.model_trait(product.name),
        names.memory_trait(product.memory_mib),
        f"{names.TRAIT_NUMA_ISLAND}{islands.numa}",
        f"{names.TRAIT_NVLINK_ISLAND}{islands.nvlink}",
    }
    if product.compute_capability:
        major, minor = product.compute_capability
        own.add(f"{names.TRAIT_CUDA}{major}_{minor}")
    return frozenset(kept | own)
