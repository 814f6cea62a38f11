# SPDX-License-Identifier: Apache-2.0
"""The GPU groups of a host as resource providers in Nova's provider tree and in Placement."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import pathlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

import os_traits
from nova import context as nova_context
from nova import exception as nova_exception
from nova.compute import provider_tree as nova_provider_tree
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import boundary, device, exception, names
from nova_gpu.core.device import Device
from nova_gpu.core.model import GroupKey, Product
from nova_gpu.core.placement import group_traits
from nova_gpu.core.topology import topology
from nova_gpu.core.topology.topology import Islands
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.host.state import files
from nova_gpu.virt.inventory import discovery, pool

_STANDARD = frozenset(os_traits.get_traits())
LOG = logging.getLogger(__name__)

# The service waits for Placement once, and not again for each guest that Nova resumes.
_PATIENCE_S = 60.0
_PAUSE_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderData:
    """What a group's provider in Placement is to have: inventory, traits and devices.

    ``inventory`` is empty if its total would be 0, because Placement refuses such an inventory.
    ``traits`` takes the provider's present traits and returns its new ones. ``model``: the class
    that counts the same devices by model, ``None`` without one.
    """

    inventory: Mapping[str, Mapping[str, int | float]]
    traits: Callable[[Iterable[str]], frozenset[str]]
    devices: Collection[Device]
    model: str | None = None


def groups_in(
    tree: nova_provider_tree.ProviderTree, nodename: str, *, in_parts: bool
) -> dict[GroupKey, str]:
    """Return the provider UUIDs of this node's groups in *tree*, even of those without cards now.

    :param in_parts: whether to return the groups of vGPUs, else those of whole cards
    """
    uuids = _all_in(tree, nodename)
    return {key: uuid for key, uuid in uuids.items() if key.is_in_parts is in_parts}


def _all_in(tree: nova_provider_tree.ProviderTree, nodename: str) -> dict[GroupKey, str]:
    return {
        key: uuid
        for uuid in tree.get_provider_uuids(name_or_uuid=nodename)
        if (key := names.parse_provider_name(nodename, tree.data(uuid).name)) is not None
    }


def ensure(
    tree: nova_provider_tree.ProviderTree,
    nodename: str,
    present: Mapping[GroupKey, str],
    keys: Iterable[GroupKey],
) -> dict[GroupKey, str]:
    """Return the provider UUIDs of all groups, after adding providers of *keys* that have none."""
    missing = [key for key in keys if key not in present]
    new = {key: tree.new_child(names.provider_name(nodename, key), nodename) for key in missing}
    return {**present, **new}


def publish(
    tree: nova_provider_tree.ProviderTree,
    provider_uuid: str,
    key: GroupKey,
    offer: ProviderData,
    supply: pool.FreeDevices,
) -> tuple[str, ...]:
    """Write the inventory, traits and devices of one group into the provider tree.

    Return the resource classes of which each device takes one.
    """
    inventory = _by_model(offer, tree.data(provider_uuid).inventory)
    if inventory:
        tree.update_inventory(provider_uuid, inventory)
    else:
        _reserve_all(tree, provider_uuid)
    own = offer.traits(tree.data(provider_uuid).traits)
    totals = {
        names.trait(names.TRAIT_TOTAL, int(record["total"])) for record in offer.inventory.values()
    }
    tree.update_traits(provider_uuid, own | totals | {os_traits.OWNER_NOVA})
    devices = pool.publish(provider_uuid, offer.devices, supply)
    tree.update_resources(provider_uuid, {device.resource_class_of(key): devices})
    return tuple(name for name in inventory if name in (*offer.inventory, offer.model))


def _by_model(
    offer: ProviderData, present: Mapping[str, Mapping[str, int | float]]
) -> dict[str, Mapping[str, int | float]]:
    """Return the inventory of *offer*, with the class of its model where models are counted.

    Classes stay once they are offered, because Placement refuses to remove what has allocations,
    and then Nova starts no service and claims nothing on the host: that of the model for further
    instances, and others reserved, such as a former name of the model and what another release
    counts.
    """
    inventory = {
        name: {**record, "reserved": record["total"]} for name, record in present.items()
    } | dict(offer.inventory)
    for record in offer.inventory.values():
        if offer.model and (CONF.gpu.count_models or offer.model in present):
            inventory[offer.model] = record
    return inventory


def traits(
    product: Product,
    hypervisor_type: str,
    present: Iterable[str],
    *,
    islands: Islands = topology.UNKNOWN,
    near: Iterable[str] = (),
    vgpu_type: VGPUType | None = None,
) -> frozenset[str]:
    """Return a group's traits, with custom traits instead of standard ones that os-traits lacks.

    They are those of :mod:`nova_gpu.core.placement.group_traits`. Placement only knows the standard
    traits of its os-traits, and refuses all traits of the host if one is unknown, such as the
    CUDA compute capability of a recent card.
    """
    wanted = group_traits.of_group(product, hypervisor_type, present, islands, near)
    takes = {trait for trait in wanted if os_traits.is_custom(trait) or trait in _STANDARD}
    own = takes | {f"{os_traits.CUSTOM_NAMESPACE}{trait}" for trait in wanted - takes}
    return frozenset(own | group_traits.of_type(vgpu_type, _STANDARD) if vgpu_type else own)


def withdraw(
    tree: nova_provider_tree.ProviderTree,
    provider_uuid: str,
    key: GroupKey,
    supply: pool.FreeDevices,
) -> None:
    """Reserve the whole inventory of a group of which the host no longer has a card.

    The inventory is not removed: Placement refuses that while an instance has an allocation of it,
    and every claim on this host would then fail, even of instances without GPUs.
    """
    _reserve_all(tree, provider_uuid)
    none = pool.publish(provider_uuid, (), supply)
    tree.update_resources(provider_uuid, {device.resource_class_of(key): none})


def refuse_claims(
    tree: nova_provider_tree.ProviderTree,
    nodename: str,
    recorded: Callable[[Mapping[str, GroupKey]], Iterable[tuple[GroupKey, Device]]],
) -> None:
    """Make claims of GPUs fail while the tree lacks their devices, so that Nova tries another host.

    If the tree has no devices of a resource class, Nova's resource tracker assigns none and reports
    no error, and the instance would only fail at its start, on this host.

    :param recorded: return the devices that instances have, each with its group, of the groups in
        its argument, which is by provider UUID
    """
    keys = _all_in(tree, nodename)
    had = list(recorded({uuid: key for key, uuid in keys.items()}))
    for key, uuid in keys.items():
        resource_class = device.resource_class_of(key)
        if resource_class not in tree.data(uuid).resources:
            own = [dev for of, dev in had if of == key]
            tree.update_resources(uuid, {resource_class: pool.without_free(uuid, own)})


def _reserve_all(tree: nova_provider_tree.ProviderTree, provider_uuid: str) -> None:
    tree.update_inventory(
        provider_uuid,
        {
            resource_class: {**record, "reserved": record["total"]}
            for resource_class, record in tree.data(provider_uuid).inventory.items()
        },
    )


def reserve_stock(
    tree: nova_provider_tree.ProviderTree,
    nodename: str,
    used: Callable[[str, str], int | None],
) -> None:
    """Reserve what is free of stock Nova's providers of vGPUs that it divides no longer.

    Stock Nova leaves them, and nova-gpu's driver makes no vGPU for an instance that Placement sends
    there. They are not removed: Nova's tracker would fail on a provider that is gone.

    :param used: return how much of a provider's resource class is allocated, ``None`` if unknown
    """
    for uuid in tree.get_provider_uuids(name_or_uuid=nodename):
        provider = tree.data(uuid)
        function = names.parse_stock_provider_name(nodename, provider.name)
        if function is None or discovery.is_divided_by_nova(function):
            continue
        counts = {}
        for name, record in provider.inventory.items():
            amount = used(uuid, name)
            rest = None if amount is None else max(record["total"] - amount, 0)
            counts[name] = record if rest is None else {**record, "reserved": rest}
        if counts != provider.inventory:
            tree.update_inventory(uuid, counts)


def reserve(
    tree: nova_provider_tree.ProviderTree,
    nodename: str,
    lacking: Iterable[Mapping[str, int]],
) -> dict[str, int]:
    """Reserve on the compute node what its instances lack of their allocations from it.

    Nova wrote the node's own inventory anew just before. Return what was reserved of each class of
    which more is reserved now.
    """
    amounts: collections.Counter[str] = collections.Counter()
    for resources in lacking:
        amounts.update(resources)
    inventory = dict(tree.data(nodename).inventory)
    before: dict[str, int] = {}
    for name in amounts.keys() & inventory.keys():
        record = inventory[name]
        # The amount is of what is offered, and the reserve of what there is.
        more = math.ceil(amounts[name] / record.get("allocation_ratio", 1.0))
        before[name] = record.get("reserved", 0)
        inventory[name] = {**record, "reserved": min(before[name] + more, record["total"])}
    if before:
        tree.update_inventory(nodename, inventory)
    return before


class Providers:
    """The file with the UUIDs of a host's providers, for the time before the first provider tree.

    After a power failure Nova resumes guests as soon as their host is up, and Placement may be up
    only later. So the UUIDs in the last provider tree are in a file in the state path::

        {"node": "compute-7", "providers": {"compute-7_gpu_10de_2335_lxc": "4e8e5957-..."}}

    A provider that is not in the file was never published, so no instance uses it. The file counts
    only for the node that it names. An outdated UUID does no harm: no resource has it. A takeover,
    which makes a provider while nova-compute is stopped, removes the file.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._former: tuple[str, Mapping[str, str]] | None = None
        self._until: float | None = None

    def keep(self, nodename: str, uuids: Mapping[GroupKey, str]) -> None:
        """Write *uuids* to the file if they have changed; Nova calls this inside every claim."""
        by_name = {names.provider_name(nodename, key): item for key, item in uuids.items()}
        if self._former == (nodename, by_name) or not (by_name or self._path.exists()):
            return
        try:
            files.write_json(self._path, {"node": nodename, "providers": by_name}, indent=1)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)  # the old file lacks the new providers
            LOG.warning(
                "Cannot write %s, so that after a host boot guests with GPUs do not start before "
                "Placement answers: %s",
                self._path,
                error,
            )
        self._former = nodename, by_name

    def of(self, client: Any, nodename: str, keys: Iterable[GroupKey]) -> dict[GroupKey, str]:
        """Return the provider UUIDs of the groups in the file, else in Placement those of *keys*.

        The first call without a file waits up to a minute for Placement, later calls do not.

        :raises ProvidersUnknown: if there is no file and Placement does not answer
        """
        uuids = self._load(nodename)
        if uuids is None:
            uuids = self._query(client, [names.provider_name(nodename, key) for key in keys])
        named = {names.parse_provider_name(nodename, name): uuids[name] for name in uuids}
        return {key: uuid for key, uuid in named.items() if key is not None}

    def kept(self) -> list[GroupKey]:
        """Return the groups of the host in the file, and none without a file.

        :raises OSError, ValueError: if it cannot be read
        """
        try:
            node, by_name = self._read()
        except FileNotFoundError:
            return []
        return list(filter(None, (names.parse_provider_name(node, name) for name in by_name)))

    def _query(self, client: Any, provider_names: Collection[str]) -> dict[str, str]:
        while True:
            try:
                with boundary.crossed():
                    return _ask(client, provider_names)
            except boundary.Failure as error:
                if self._until is None:
                    self._until = time.monotonic() + _PATIENCE_S
                    LOG.warning(
                        "Placement does not answer; guests with GPUs wait for it, at most %g s: %s",
                        _PATIENCE_S,
                        error,
                    )
                if time.monotonic() >= self._until:
                    raise exception.ProvidersUnknown(str(error)) from error
            time.sleep(_PAUSE_S)

    def _load(self, nodename: str) -> dict[str, str] | None:
        """Return the file's UUIDs by provider name; ``None`` without a valid file of this node."""
        try:
            node, by_name = self._read()
        except (OSError, ValueError):
            return None
        return by_name if node == nodename else None

    def _read(self) -> tuple[str, dict[str, str]]:
        """Return the node that the file names, and the UUIDs by provider name.

        :raises OSError, ValueError: if it cannot be read
        """
        content = files.read_json(self._path)
        try:
            items = content["providers"].items()
            return str(content["node"]), {str(name): str(UUID(item)) for name, item in items}
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{self._path} is no record of providers") from error


def _ask(client: Any, provider_names: Iterable[str]) -> dict[str, str]:
    context = nova_context.get_admin_context()
    uuids = {}
    for name in provider_names:
        # A group that is new since the last run has no provider yet, so no instance uses it.
        with contextlib.suppress(nova_exception.ResourceProviderNotFound):
            uuids[name] = client.get_provider_by_name(context, name)["uuid"]
    return uuids
