# SPDX-License-Identifier: Apache-2.0
"""Groups of GPUs as providers in Nova's tree, and with it in Placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import os_traits
from nova.compute import provider_tree as nova_provider_tree

from nova_gpu.core import inventory, names, topology
from nova_gpu.core.model import GPUGroup, GroupKey
from nova_gpu.virt import pool
from nova_gpu.virt.offer import Offer

_STANDARD = frozenset(os_traits.get_traits())


def groups_in(tree: nova_provider_tree.ProviderTree, nodename: str) -> dict[GroupKey, str]:
    """The groups this node has in the tree, those it offered in earlier times included."""
    keys = {}
    for uuid in tree.get_provider_uuids(name_or_uuid=nodename):
        key = names.parse_provider_name(nodename, tree.data(uuid).name)
        if key is not None:
            keys[key] = uuid
    return keys


def ensure(
    tree: nova_provider_tree.ProviderTree, nodename: str, offered: Offer
) -> dict[GroupKey, str]:
    """The providers of all groups, the offered ones made where they are missing, by group."""
    for key in offered:
        name = names.provider_name(nodename, key)
        if not tree.exists(name):
            tree.new_child(name, nodename)
    return groups_in(tree, nodename)


def publish(
    tree: nova_provider_tree.ProviderTree,
    provider_uuid: str,
    group: GPUGroup,
    reserved: int,
    hypervisor_type: str,
    supply: pool.Supply,
) -> None:
    """Writes inventory, traits and devices of one group."""
    tree.update_inventory(provider_uuid, inventory.inventory(len(group.gpus), reserved))
    present = tree.data(provider_uuid).traits
    own = traits(group, hypervisor_type, present)
    tree.update_traits(provider_uuid, own | {os_traits.OWNER_NOVA})
    devices = pool.publish(provider_uuid, group.gpus, supply)
    tree.update_resources(provider_uuid, {names.RESOURCE_CLASS: devices})


def traits(group: GPUGroup, hypervisor_type: str, present: Iterable[str]) -> frozenset[str]:
    """The traits of :func:`nova_gpu.core.inventory.traits` as Placement takes them.

    A standard trait is made by Placement's own os-traits alone, and one that it does not know makes
    it refuse all of the host's. The list of CUDA's compute capabilities ends before today's cards.
    """
    islands = topology.islands(group.gpus.values())
    wanted = inventory.traits(group.product, hypervisor_type, present, islands)
    takes = {each for each in wanted if os_traits.is_custom(each) or each in _STANDARD}
    return frozenset(takes | {f"{os_traits.CUSTOM_NAMESPACE}{each}" for each in wanted - takes})


def withdraw(
    tree: nova_provider_tree.ProviderTree, provider_uuid: str, supply: pool.Supply
) -> None:
    """Reserves all of a group that the host has no card of any more.

    Its inventory stays: while an allocation is left, Placement refuses to remove it, and then every
    claim on this host would fail, with GPUs or without.
    """
    for resource_class, record in tree.data(provider_uuid).inventory.items():
        if resource_class == names.RESOURCE_CLASS:
            total: int = record["total"]
            tree.update_inventory(provider_uuid, inventory.inventory(total, total))
    devices: Mapping[str, pool.DeviceSet] = {
        names.RESOURCE_CLASS: pool.publish(provider_uuid, (), supply)
    }
    tree.update_resources(provider_uuid, devices)
