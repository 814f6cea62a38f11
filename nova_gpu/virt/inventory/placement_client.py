# SPDX-License-Identifier: Apache-2.0
"""Requests to Placement that Nova's report client has no method for.

They read and write an instance's allocations of GPUs and vGPUs. Each *client* is Nova's
``nova.scheduler.client.report.SchedulerReportClient``. An answer with an error status raises
PlacementFailed.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib import parse

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.scheduler.client import report

from nova_gpu.core import exception, names
from nova_gpu.virt.usage import allocations as placement_allocations

# The first one in which all that a provider has may be reserved (Nova uses it as well)
_VERSION = "1.26"

# The amount of each resource class, by the UUID of the provider
Amounts = Mapping[str, Mapping[str, int]]
# Another process, such as the end of a move, may write the instance's allocations meanwhile.
_ATTEMPTS = 3


class Written(enum.Enum):
    """The result of a write of an instance's allocation."""

    WHOLE = "the allocation is whole"
    WITHOUT_NODE = "the GPUs are allocated, and the node has no room for the rest"
    NONE = "nothing is written: a provider has too little left"


def get(client: Any, url: str) -> Any:
    """Return the parsed JSON body of Placement's answer to a GET of *url*."""
    return _parsed(client.get(url, version=_VERSION), url)


def _parsed(answer: Any, url: str) -> Any:
    if answer.status_code != 200:
        raise exception.PlacementFailed(url, f"{answer.status_code} {answer.text}")
    return answer.json()


def candidates(client: Any, pairs: Sequence[tuple[str, str]]) -> Any:
    """Return the parsed body of Placement's allocation candidates for the query *pairs*.

    There is none for a trait that Placement does not know.
    """
    url = f"/allocation_candidates?{parse.urlencode(pairs)}"
    answer = client.get(url, version=report.SAME_SUBTREE_VERSION)
    if answer.status_code == 400 and "trait" in answer.text:
        return {"allocation_requests": [], "provider_summaries": {}}
    return _parsed(answer, url)


def allocations(client: Any, instance_uuid: str, providers: Collection[str]) -> dict[str, Any]:
    """Return the instance's allocations of GPUs and vGPUs from *providers*, by provider."""
    answer = read_consumer(client, instance_uuid)["allocations"]
    return {
        uuid: item
        for uuid, item in answer.items()
        if uuid in providers and names.gpus_in(item["resources"])
    }


def write_allocations(
    client: Any,
    instance: objects.Instance,
    providers: Collection[str],
    amounts: Amounts,
    *,
    has_them: bool,
    reserves: Amounts = MappingProxyType({}),
) -> Written:
    """Make the instance's allocation whole: its GPUs and vGPUs of *providers* are *amounts*.

    :param has_them, reserves: as :func:`write_consumer`
    :raises PlacementFailed: if other processes changed the allocations in every attempt
    """
    for _ in range(_ATTEMPTS):
        consumer = read_consumer(client, instance.uuid)
        try:
            return write_consumer(
                client,
                instance,
                consumer,
                providers,
                amounts,
                has_them=has_them,
                reserves=reserves,
            )
        except nova_exception.AllocationUpdateFailed:
            continue
    raise exception.PlacementFailed(
        f"/allocations/{instance.uuid}",
        f"other processes changed the allocations during each of {_ATTEMPTS} attempts",
        verb="PUT",
    )


def read_consumer(client: Any, instance_uuid: str) -> dict[str, Any]:
    """Return all allocations of the instance in Placement, with its consumer generation."""
    consumer: dict[str, Any] = client.get_allocs_for_consumer(
        nova_context.get_admin_context(), instance_uuid
    )
    return consumer


def write_consumer(
    client: Any,
    instance: objects.Instance,
    consumer: Mapping[str, Any],
    providers: Collection[str],
    amounts: Amounts,
    *,
    has_them: bool,
    reserves: Amounts = MappingProxyType({}),
) -> Written:
    """Make one attempt of :func:`write_allocations`, the only writer of instances' allocations.

    The allocation from the instance's compute node is written with the GPUs if the instance has
    none, as after a failed rebuild. Its other allocations stay.

    :param consumer: the instance's allocations now, from :func:`read_consumer`
    :param has_them: whether the instance has the GPUs already: then they are written even if the
        node has no room left for the rest
    :param reserves: of providers of which something is reserved because no allocation covers it,
        which makes room for this one: what is reserved of each class for other reasons
    :raises nova.exception.AllocationUpdateFailed: if the allocations have changed since they were
        read
    """
    gpus = dict(consumer["allocations"])
    for uuid in {*providers, *amounts}:
        resources = gpus.pop(uuid, {}).get("resources", {})
        rest = {name: item for name, item in resources.items() if not names.is_gpu_class(name)}
        if wanted := {**rest, **amounts.get(uuid, {})}:
            gpus[uuid] = {**consumer["allocations"].get(uuid, {}), "resources": wanted}
    whole = _node_part(client, instance, consumer["allocations"]) | gpus
    if _put(client, instance, consumer, whole, reserves):
        return Written.WHOLE
    if not has_them or gpus == whole:
        return Written.NONE
    is_counted = gpus == consumer["allocations"] or _put(client, instance, consumer, gpus, reserves)
    return Written.WITHOUT_NODE if is_counted else Written.NONE


def _node_part(
    client: Any, instance: objects.Instance, allocated: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the allocation that the instance lacks from its compute node; empty if it has one."""
    node = client.get_provider_by_name(nova_context.get_admin_context(), instance.node)["uuid"]
    if node in allocated:
        return {}
    # Disks may be allocated from another provider that the node shares, which Nova forgets, too.
    inventories = get(client, f"/resource_providers/{node}/inventories")["inventories"]
    part = placement_allocations.node_part(instance)
    resources = {name: amount for name, amount in part.items() if name in inventories}
    return {node: {"resources": resources}} if resources else {}


def _put(
    client: Any,
    instance: objects.Instance,
    consumer: Mapping[str, Any],
    allocated: Mapping[str, Any],
    reserves: Amounts,
) -> bool:
    """Write an allocation, if needed in place of what is reserved; return whether that worked."""
    if _put_once(client, instance, consumer, allocated):
        return True
    with contextlib.ExitStack() as undoing:
        is_lowered = False
        for uuid in allocated.keys() & reserves.keys():
            lacking = collections.Counter(allocated[uuid]["resources"])
            lacking.subtract(consumer["allocations"].get(uuid, {}).get("resources", {}))
            before = _lower(client, uuid, +lacking, reserves[uuid])
            undoing.callback(_set_reserved, client, uuid, before)
            is_lowered = is_lowered or bool(before)
        if is_lowered and _put_once(client, instance, consumer, allocated):
            undoing.pop_all()
            return True
    return False


def _lower(
    client: Any, provider_uuid: str, lacking: Mapping[str, int], own: Mapping[str, int]
) -> dict[str, int]:
    """Reserve less of a provider, for an allocation of *lacking*.

    :param own: what stays reserved of each class in any case
    :returns: what was reserved before of each class of which less is reserved now
    """
    inventories = get(client, f"/resource_providers/{provider_uuid}/inventories")["inventories"]
    before, less = {}, {}
    for name in lacking.keys() & own.keys() & inventories.keys():
        # The amount is of what is offered, and the reserve of what there is.
        wanted = math.ceil(lacking[name] / inventories[name]["allocation_ratio"])
        reserved = inventories[name]["reserved"]
        if (lower := max(reserved - wanted, own[name])) < reserved:
            before[name], less[name] = reserved, lower
    _set_reserved(client, provider_uuid, less)
    return before


def _set_reserved(client: Any, provider_uuid: str, reserved: Mapping[str, int]) -> None:
    """Set what is reserved of each class in *reserved*."""
    if not reserved:
        return
    url = f"/resource_providers/{provider_uuid}/inventories"
    body = get(client, url)
    for name, amount in reserved.items():
        body["inventories"][name]["reserved"] = amount
    try:
        answer = client.put(url, body, version=_VERSION)
    finally:
        # Nova writes only what differs from what it has read: it must read this anew.
        client.invalidate_resource_provider(provider_uuid, cacheonly=True)
    if answer.status_code != 200:
        reason = f"{answer.status_code} {answer.text}"
        raise exception.PlacementFailed(url, reason, verb="PUT")


def _put_once(
    client: Any,
    instance: objects.Instance,
    consumer: Mapping[str, Any],
    allocated: Mapping[str, Any],
) -> bool:
    payload = {
        "allocations": allocated,
        "project_id": instance.project_id,
        "user_id": instance.user_id,
        "consumer_generation": consumer.get("consumer_generation"),
    }
    context = nova_context.get_admin_context()
    return bool(client.put_allocations(context, instance.uuid, payload))
