# SPDX-License-Identifier: Apache-2.0
"""Groups of GPUs as providers in Nova's tree, and with it in Placement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import os_traits
from nova import context as nova_context
from nova import exception as nova_exception
from nova.compute import provider_tree as nova_provider_tree

from nova_gpu.core import names
from nova_gpu.core.device import Device
from nova_gpu.core.model import DeliveryMode, GPUGroup, GroupKey
from nova_gpu.core.placement import inventory, vgpu_inventory
from nova_gpu.core.topology import topology
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_group import VGPUGroup
from nova_gpu.core.vgpu.vgpu_room import Room
from nova_gpu.virt.inventory import pool

_STANDARD = frozenset(os_traits.get_traits())


def groups_in(tree: nova_provider_tree.ProviderTree, nodename: str) -> dict[GroupKey, str]:
    """The groups of whole cards this node has in the tree, those it offered in earlier times
    included."""
    found = _all_in(tree, nodename).items()
    return {key: uuid for key, uuid in found if key.mode is not DeliveryMode.VGPU}


def vgpu_groups_in(tree: nova_provider_tree.ProviderTree, nodename: str) -> dict[GroupKey, str]:
    """The same of groups of vGPUs"""
    found = _all_in(tree, nodename).items()
    return {key: uuid for key, uuid in found if key.mode is DeliveryMode.VGPU}


def _all_in(tree: nova_provider_tree.ProviderTree, nodename: str) -> dict[GroupKey, str]:
    keys = {}
    for uuid in tree.get_provider_uuids(name_or_uuid=nodename):
        key = names.parse_provider_name(nodename, tree.data(uuid).name)
        if key is not None:
            keys[key] = uuid
    return keys


def ensure(
    tree: nova_provider_tree.ProviderTree, nodename: str, offered: Iterable[GroupKey]
) -> dict[GroupKey, str]:
    """The providers of all groups of whole cards, the offered ones made where they are missing, by
    group."""
    _make(tree, nodename, offered)
    return groups_in(tree, nodename)


def ensure_vgpus(
    tree: nova_provider_tree.ProviderTree, nodename: str, offered: Iterable[GroupKey]
) -> dict[GroupKey, str]:
    """The same of groups of vGPUs"""
    _make(tree, nodename, offered)
    return vgpu_groups_in(tree, nodename)


def _make(
    tree: nova_provider_tree.ProviderTree, nodename: str, offered: Iterable[GroupKey]
) -> None:
    for key in offered:
        name = names.provider_name(nodename, key)
        if not tree.exists(name):
            tree.new_child(name, nodename)


def ask(client: Any, nodename: str, keys: Iterable[GroupKey]) -> dict[GroupKey, str]:
    """The uuids of those groups' providers that Placement has.

    :param client: Nova's report client
    """
    context = nova_context.get_admin_context()
    found = {}
    for key in keys:
        # A group that is new since the last run is not there yet, and nobody's.
        with contextlib.suppress(nova_exception.ResourceProviderNotFound):
            provider = client.get_provider_by_name(context, names.provider_name(nodename, key))
            found[key] = provider["uuid"]
    return found


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


def publish_vgpus(
    tree: nova_provider_tree.ProviderTree,
    provider_uuid: str,
    group: VGPUGroup,
    rooms: Iterable[Room],
    slots: Collection[Slot],
    hypervisor_type: str,
    supply: pool.Supply,
) -> None:
    """Writes inventory, traits and slots of one group of vGPUs."""
    if body := vgpu_inventory.inventory_of(rooms):
        tree.update_inventory(provider_uuid, body)
    else:
        _reserve_all(tree, provider_uuid)
    wanted = inventory.traits(group.product, hypervisor_type, tree.data(provider_uuid).traits)
    own = _as_taken(wanted) | vgpu_inventory.traits(group.facts, _STANDARD)
    tree.update_traits(provider_uuid, own | {os_traits.OWNER_NOVA})
    devices = pool.publish(provider_uuid, slots, supply)
    tree.update_resources(provider_uuid, {names.VGPU_RESOURCE_CLASS: devices})


def traits(group: GPUGroup, hypervisor_type: str, present: Iterable[str]) -> frozenset[str]:
    """The traits of :func:`nova_gpu.core.placement.inventory.traits` as Placement takes them.

    A standard trait is made by Placement's own os-traits alone, and one that it does not know makes
    it refuse all of the host's. The list of CUDA's compute capabilities ends before today's cards.
    """
    islands = topology.islands(group.gpus.values())
    return _as_taken(inventory.traits(group.product, hypervisor_type, present, islands))


def _as_taken(wanted: frozenset[str]) -> frozenset[str]:
    takes = {each for each in wanted if os_traits.is_custom(each) or each in _STANDARD}
    return frozenset(takes | {f"{os_traits.CUSTOM_NAMESPACE}{each}" for each in wanted - takes})


def withdraw(
    tree: nova_provider_tree.ProviderTree,
    provider_uuid: str,
    supply: pool.Supply,
    resource_class: str = names.RESOURCE_CLASS,
) -> None:
    """Reserves all of a group that the host has no card of any more.

    Its inventory stays: while an allocation is left, Placement refuses to remove it, and then every
    claim on this host would fail, with GPUs or without.
    """
    _reserve_all(tree, provider_uuid)
    tree.update_resources(provider_uuid, {resource_class: pool.publish(provider_uuid, (), supply)})


def refuse_claims(
    tree: nova_provider_tree.ProviderTree,
    nodename: str,
    recorded: Callable[[Mapping[str, GroupKey]], Iterable[tuple[GroupKey, Device]]],
) -> None:
    """Has Nova try another host for who claims of a group that has no devices in the tree.

    Of a class that is not there the resource tracker hands out nothing and says nothing, and the
    instance's build would end here.

    :param recorded: of those groups, by provider, what instances have
    """
    keys = _all_in(tree, nodename)
    had = list(recorded({uuid: key for key, uuid in keys.items()}))
    for key, uuid in keys.items():
        parts = key.mode is DeliveryMode.VGPU
        resource_class = names.VGPU_RESOURCE_CLASS if parts else names.RESOURCE_CLASS
        if resource_class not in tree.data(uuid).resources:
            own = [each for of, each in had if of == key]
            tree.update_resources(uuid, {resource_class: pool.without_free(uuid, own)})


def _reserve_all(tree: nova_provider_tree.ProviderTree, provider_uuid: str) -> None:
    tree.update_inventory(
        provider_uuid,
        {
            resource_class: {**record, "reserved": record["total"]}
            for resource_class, record in tree.data(provider_uuid).inventory.items()
        },
    )
