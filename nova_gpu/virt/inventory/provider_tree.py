# SPDX-License-Identifier: Apache-2.0
"""Groups of GPUs as providers in Nova's tree, and with it in Placement."""

from __future__ import annotations

import contextlib
import dataclasses
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

from nova_gpu.core import boundary, device, exception, names
from nova_gpu.core.device import Device
from nova_gpu.core.model import GroupKey, Product
from nova_gpu.core.placement import group_traits
from nova_gpu.core.topology import topology
from nova_gpu.core.topology.topology import Islands
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.host.state import files
from nova_gpu.virt.inventory import pool

_STANDARD = frozenset(os_traits.get_traits())
LOG = logging.getLogger(__name__)

# Placement is waited for once, and not again for each guest that is resumed.
_PATIENCE_S = 60.0
_PAUSE_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """The offer of one group.

    ``inventory`` is empty where there is nothing to count: Placement takes no inventory of nothing.
    ``traits`` are those of a provider that has those already which it is given.
    """

    inventory: Mapping[str, Mapping[str, int | float]]
    traits: Callable[[Iterable[str]], frozenset[str]]
    devices: Collection[Device]


def groups_in(
    tree: nova_provider_tree.ProviderTree, nodename: str, *, in_parts: bool
) -> dict[GroupKey, str]:
    """Return the groups this node has in the tree, those it offered in earlier times included.

    :param in_parts: those of vGPUs, else those of whole cards
    """
    items = _all_in(tree, nodename).items()
    return {key: uuid for key, uuid in items if key.is_in_parts is in_parts}


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
    keys: Iterable[GroupKey],
) -> dict[GroupKey, str]:
    """Return the providers by group: those *present*, and new ones for *keys* without one.

    :param present: as :func:`groups_in` has found them
    """
    missing = [key for key in keys if key not in present]
    new = {key: tree.new_child(names.provider_name(nodename, key), nodename) for key in missing}
    return {**present, **new}


def ask(client: Any, nodename: str, keys: Iterable[GroupKey]) -> dict[GroupKey, str]:
    """Return the uuids of those groups' providers that Placement has.

    :param client: Nova's report client
    """
    context = nova_context.get_admin_context()
    uuids = {}
    for key in keys:
        # A group that is new since the last run is not there yet, and nobody's.
        with contextlib.suppress(nova_exception.ResourceProviderNotFound):
            provider = client.get_provider_by_name(context, names.provider_name(nodename, key))
            uuids[key] = provider["uuid"]
    return uuids


def publish(
    tree: nova_provider_tree.ProviderTree,
    provider_uuid: str,
    key: GroupKey,
    offer: Offer,
    supply: pool.Supply,
) -> None:
    """Write inventory, traits and devices of one group."""
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
    """Return the traits of a group as Placement takes them, with the traits of its vGPU type.

    They are those of :mod:`nova_gpu.core.placement.group_traits`. A standard trait is made by
    Placement's own os-traits alone, and one that it does not know makes it refuse all of the
    host's. The list of CUDA's compute capabilities ends before today's cards.
    """
    wanted = group_traits.of_group(product, hypervisor_type, present, islands, near)
    takes = {trait for trait in wanted if os_traits.is_custom(trait) or trait in _STANDARD}
    own = takes | {f"{os_traits.CUSTOM_NAMESPACE}{trait}" for trait in wanted - takes}
    return frozenset(own | group_traits.of_type(vgpu_type, _STANDARD) if vgpu_type else own)


def withdraw(
    tree: nova_provider_tree.ProviderTree,
    provider_uuid: str,
    key: GroupKey,
    supply: pool.Supply,
) -> None:
    """Reserve all of a group that the host has no card of any more.

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
    """Let Nova try another host for claims of a group that has no devices in the tree.

    Of a class that is not there the resource tracker hands out nothing and says nothing, and the
    instance's build would end here.

    :param recorded: of those groups, by provider, what instances have
    """
    keys = _all_in(tree, nodename)
    had = list(recorded({uuid: key for key, uuid in keys.items()}))
    for key, uuid in keys.items():
        resource_class = device.resource_class_of(key)
        if resource_class not in tree.data(uuid).resources:
            own = [allocation for of, allocation in had if of == key]
            tree.update_resources(uuid, {resource_class: pool.without_free(uuid, own)})


def _reserve_all(tree: nova_provider_tree.ProviderTree, provider_uuid: str) -> None:
    tree.update_inventory(
        provider_uuid,
        {
            resource_class: {**record, "reserved": record["total"]}
            for resource_class, record in tree.data(provider_uuid).inventory.items()
        },
    )


class Providers:
    """Which providers stand for a host's groups, before the first provider tree was made.

    After a power failure guests are resumed as soon as their host is up, and Placement may be up
    only later. So what the last tree had is kept in the state path::

        {"node": "compute-7", "providers": {"compute-7_gpu_10de_2335_lxc": "4e8e5957-..."}}

    A provider that is not in it was never published, and no instance uses it. It is only believed
    of the node that it names: the uuids are unique, and what stands for nothing matches nothing.

    :param path: of the file; need not exist yet
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._kept: tuple[str, Mapping[str, str]] | None = None
        self._until: float | None = None

    def keep(self, nodename: str, uuids: Mapping[GroupKey, str]) -> None:
        """Write them down where they are others than before.

        Runs inside every claim.
        """
        by_name = {names.provider_name(nodename, key): item for key, item in uuids.items()}
        if self._kept == (nodename, by_name) or not (by_name or self._path.exists()):
            return
        try:
            files.write_json(self._path, {"node": nodename, "providers": by_name}, indent=1)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)  # it would lack what is new
            LOG.warning("After a host boot guests start only when Placement answers: %s", error)
        self._kept = nodename, by_name

    def of(self, client: Any, nodename: str, keys: Iterable[GroupKey]) -> dict[GroupKey, str]:
        """Return the providers of *keys*, as recorded, or else from Placement.

        :param client: Nova's report client
        :raises ProvidersUnknown: where neither tells
        """
        uuids = self._load(nodename)
        if uuids is None:
            return self._asked(client, nodename, list(keys))
        named = {key: names.provider_name(nodename, key) for key in keys}
        return {key: uuids[name] for key, name in named.items() if name in uuids}

    def _asked(self, client: Any, nodename: str, keys: list[GroupKey]) -> dict[GroupKey, str]:
        while True:
            try:
                with boundary.crossed():
                    return ask(client, nodename, keys)
            except boundary.Failure as error:
                if self._until is None:
                    self._until = time.monotonic() + _PATIENCE_S
                    LOG.warning("Waiting for Placement, at most %g s: %s", _PATIENCE_S, error)
                if time.monotonic() >= self._until:
                    raise exception.ProvidersUnknown(str(error)) from error
            time.sleep(_PAUSE_S)

    def _load(self, nodename: str) -> dict[str, str] | None:
        """Read the uuids by name, ``None`` where they are not what was written for this node."""
        try:
            content = files.read_json(self._path)
            if content["node"] != nodename:
                return None
            items = content["providers"].items()
            return {str(name): str(UUID(item)) for name, item in items}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
