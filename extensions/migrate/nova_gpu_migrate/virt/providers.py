# SPDX-License-Identifier: Apache-2.0
"""Stock Nova's resource providers of PCI devices and of cards that it divides."""

from __future__ import annotations

import re
from typing import Any

from nova_gpu.core import names
from nova_gpu.core.model import PciAddress
from nova_gpu.virt.inventory import placement_client
from nova_gpu_migrate.core.stock_holding import StockProvider
from nova_gpu_migrate.virt import definitions

# host1_0000:3B:00.0, and host1_pci_0000_3b_00_0 of mediated devices: Nova's
# compute/pci_placement_translator.py, and _update_provider_tree_for_vgpu of its libvirt driver
_ADDRESS_AT_END = re.compile(
    r"_([0-9a-f]{4,8})[:_]([0-9a-f]{2})[:_]([0-9a-f]{2})[._]([0-7])$", re.IGNORECASE
)


def function_of(name: str) -> PciAddress | None:
    """Return the PCI function whose provider has this *name*, ``None`` for other providers."""
    match = _ADDRESS_AT_END.search(name)
    return PciAddress.parse("{}:{}:{}.{}".format(*match.groups())) if match else None


def name_of(nodename: str, parent: PciAddress) -> str:
    """Return the name of the provider of mediated devices at a function."""
    return f"{nodename}_{definitions.node_device(parent)}"


def read(client: Any, name: str, uuid: str) -> StockProvider:
    """Return the provider with its resource classes, traits and consumers.

    One that a takeover was about to remove has no inventory any more; it had Nova's own class.

    :raises PlacementFailed: if Placement does not have it
    """
    url = f"/resource_providers/{uuid}"
    inventories = placement_client.get(client, f"{url}/inventories")["inventories"]
    traits = placement_client.get(client, f"{url}/traits")["traits"]
    classes = frozenset(inventories or [names.VGPU_RESOURCE_CLASS])
    allocations = placement_client.get(client, f"{url}/allocations")["allocations"]
    return StockProvider(name, classes, frozenset(traits), frozenset(allocations))
