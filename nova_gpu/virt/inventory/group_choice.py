# SPDX-License-Identifier: Apache-2.0
"""The choice of groups from which an instance of this host gets GPUs, outside Nova's scheduler.

It is made when an instance starts that has none. Inventories, usages and traits are Placement's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from nova import context as nova_context
from nova import objects
from oslo_utils import timeutils

from nova_gpu.core import device, exception, extensions
from nova_gpu.core.flavor import query, request_group, summary
from nova_gpu.core.flavor.request import FlavorRequest, Request
from nova_gpu.core.model import GroupKey
from nova_gpu.core.placement import closing_trait
from nova_gpu.core.scheduling import capacity
from nova_gpu.core.scheduling.capacity import Group
from nova_gpu.virt.inventory import placement_client
from nova_gpu.virt.inventory.placement_client import Amounts

_ELSEWHERE = "start it when some are free, or have it come to another host: shelve and unshelve it"
_REMEDIES = extensions.load("nova_gpu.start_remedies")


def choose(
    client: Any,
    nodename: str,
    instance: objects.Instance,
    flavor: FlavorRequest,
    ours: Mapping[GroupKey, str],
    allocate: Callable[[Amounts], Amounts | None],
) -> Amounts:
    """Choose groups of GPUs for the instance; return what *allocate* has allocated from them.

    :param ours: the uuid of the provider of each group of this host
    :param allocate: allocate an amount from each of some providers; return ``None`` if Placement
        refuses, because another instance got the GPUs since they were read
    :raises NoneFree: if no combination of groups has enough free GPUs that fit
    """
    remedy = _remedy(flavor)
    _refuse_closed(client, nodename, flavor, remedy)
    groups = {uuid: _group(client, key, uuid) for key, uuid in ours.items()}
    known = frozenset[str]().union(*(group.traits for group in groups.values()))
    choices = []
    for request in flavor.requests:
        of_kind = {
            uuid: groups[uuid]
            for key, uuid in ours.items()
            if device.resource_class_of(key) == request.resource_class
        }
        ways = list(_ways(instance, flavor, request, of_kind, known))
        if not ways:
            raise _none_free(client, request, of_kind, remedy)
        choices.append((request, of_kind, ways))
    for chosen in itertools.product(*(ways for _, _, ways in choices)):
        amounts = allocate({uuid: item for way in chosen for uuid, item in way.items()})
        if amounts is not None:
            return amounts
    request, of_kind, _ = choices[0]
    raise _none_free(client, request, of_kind, remedy)


def _refuse_closed(client: Any, nodename: str, request: FlavorRequest, remedy: str) -> None:
    """Refuse a start on a host that is closed to the flavor's instances.

    :raises NoneFree: if the start is refused
    """
    context = nova_context.get_admin_context()
    node = client.get_provider_by_name(context, nodename)["uuid"]
    traits = placement_client.get(client, f"/resource_providers/{node}/traits")["traits"]
    for trait in closing_trait.declared():
        if trait.closes(request.extra_specs) and trait.in_force(traits, timeutils.utcnow()):
            raise exception.NoneFree(trait.at_start, remedy)


def _none_free(
    client: Any, request: Request, groups: Mapping[str, Group], remedy: str
) -> exception.NoneFree:
    """Return the error for too few free GPUs in *groups*.

    In the log it also names the instances that have GPUs of *groups*.
    """
    context = nova_context.get_admin_context()
    holders: set[str] = set()
    for uuid in groups:
        holders |= client.get_allocations_for_resource_provider(context, uuid).allocations.keys()
    most = max((group.free for group in groups.values()), default=0)
    return exception.NoneFree(
        f"{summary.all_of(request)} asked for, at most {most} free on its host",
        remedy,
        f"in use by {', '.join(sorted(holders)) or 'no instance'}",
    )


def _remedy(request: FlavorRequest) -> str:
    """Return the text for the user about what to do if the host has too few free GPUs."""
    remedies = (remedy(request.extra_specs) for remedy in _REMEDIES)
    return next(filter(None, remedies), _ELSEWHERE)


def _group(client: Any, key: GroupKey, uuid: str) -> Group:
    url = f"/resource_providers/{uuid}"
    resource_class = device.resource_class_of(key)
    inventory = placement_client.get(client, f"{url}/inventories")["inventories"].get(
        resource_class, {}
    )
    return Group(
        total=inventory.get("total", 0),
        reserved=inventory.get("reserved", 0),
        used=placement_client.get(client, f"{url}/usages")["usages"].get(resource_class, 0),
        traits=frozenset(placement_client.get(client, f"{url}/traits")["traits"]),
    )


def _ways(
    instance: objects.Instance,
    flavor: FlavorRequest,
    request: Request,
    groups: Mapping[str, Group],
    known: Collection[str],
) -> Iterator[Amounts]:
    """Yield each combination of amounts from *groups* that has enough free GPUs for *request*.

    :param groups: the groups of the request's resource class, by the uuid of their provider
    :param known: the traits of all groups of this host
    """
    parts = query.resolved(request, known)
    if parts is None:
        return
    uuids = list(groups)
    of_image = instance.image_meta.properties.get("traits_required", ())
    image = frozenset(filter(request_group.is_gpu_trait, of_image))
    for way in capacity.ways(parts, list(groups.values()), isolate=flavor.is_isolated):
        if not image <= frozenset().union(*(groups[uuids[index]].traits for index in way)):
            continue
        amounts: dict[str, dict[str, int]] = {}
        for part, index in zip(parts, way, strict=True):
            of_group = amounts.setdefault(uuids[index], {request.resource_class: 0})
            of_group[request.resource_class] += part.count
        yield amounts
