# SPDX-License-Identifier: Apache-2.0
"""Groups of GPUs as providers in Nova's tree, and with it in Placement."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import os_traits
from nova import context as nova_context
from nova import exception as nova_exception
from nova.compute import provider_tree as nova_provider_tree

from nova_gpu.core import device, names
from nova_gpu.core.device import Device
from nova_gpu.core.model import GroupKey, Product
from nova_gpu.core.placement import inventory
from nova_gpu.core.topology import topology
from nova_gpu.core.topology.topology import Islands
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.virt.inventory import pool

_STANDARD = frozenset(os_traits.get_traits())


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """What one group has to offer now.

    ``inventory`` is empty where there is nothing to count: Placement takes no inventory of nothing.
    ``traits`` are those of a provider that has those already which it is given.
    """

    inventory: Mapping[str, Mapping[str, int | float]]
    traits: Callable[[Iterable[str]], frozenset[str]]
    devices: Collection[Device]


def groups_in(
    tree: nova_provider_tree.ProviderTree, nodename: str, *, in_parts: bool
) -> dict[GroupKey, str]:
    """The groups this node has in the tree, those it offered in earlier times included.

    :param in_parts: those of vGPUs, else those of whole cards
    """
    found = _all_in(tree, nodename).items()
    return {key: uuid for key, uuid in found if key.is_in_parts is in_parts}


def _all_in(tree: nova_provider_tree.ProviderTree, nodename: str) -> dict[GroupKey, str]:
    keys = {}
    for uuid in tree.get_provider_uuids(name_or_uuid=nodename):
        key = names.parse_provider_name(nodename, tree.data(uuid).name)
        if key is not None:
            keys[key] = uuid
    return keys


def ensure(
    tree: nova_provider_tree.ProviderTree,
    nodename: str,
    present: Mapping[GroupKey, str],
    offered: Iterable[GroupKey],
) -> dict[GroupKey, str]:
    """The providers that are *present*, and new ones of *offered* groups that have none, by group.

    :param present: as :func:`groups_in` has found them
    """
    missing = [key for key in offered if key not in present]
    new = {key: tree.new_child(names.provider_name(nodename, key), nodename) for key in missing}
    return {**present, **new}


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
    key: GroupKey,
    offer: Offer,
    supply: pool.Supply,
) -> None:
    """Writes inventory, traits and devices of one group."""
    if offer.inventory:
        tree.update_inventory(provider_uuid, offer.inventory)
    else:
        _reserve_all(tree, provider_uuid)
    own = offer.traits(tree.data(provider_uuid).traits)
    tree.update_traits(provider_uuid, own | {os_traits.OWNER_NOVA})
    devices = pool.publish(provider_uuid, offer.devices, supply)
    tree.update_resources(provider_uuid, {device.resource_class_of(key): devices})


def traits(
    product: Product,
    hypervisor_type: str,
    present: Iterable[str],
    *,
    islands: Islands = topology.UNKNOWN,
    near: Iterable[str] = (),
    vgpu_type: VGPUType | None = None,
) -> frozenset[str]:
    """The traits of :func:`nova_gpu.core.placement.inventory.traits` as Placement takes them, and
    what the type of vGPUs adds.

    A standard trait is made by Placement's own os-traits alone, and one that it does not know makes
    it refuse all of the host's. The list of CUDA's compute capabilities ends before today's cards.
    """
    wanted = inventory.traits(product, hypervisor_type, present, islands, near)
    takes = {each for each in wanted if os_traits.is_custom(each) or each in _STANDARD}
    own = takes | {f"{os_traits.CUSTOM_NAMESPACE}{each}" for each in wanted - takes}
    return frozenset(own | inventory.type_traits(vgpu_type, _STANDARD) if vgpu_type else own)


def withdraw(
    tree: nova_provider_tree.ProviderTree,
    provider_uuid: str,
    key: GroupKey,
    supply: pool.Supply,
) -> None:
    """Reserves all of a group that the host has no card of any more.

    Its inventory stays: while an allocation is left, Placement refuses to remove it, and then every
    claim on this host would fail, with GPUs or without.
    """
    _reserve_all(tree, provider_uuid)
    none = pool.publish(provider_uuid, (), supply)
    tree.update_resources(provider_uuid, {device.resource_class_of(key): none})


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
        resource_class = device.resource_class_of(key)
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
