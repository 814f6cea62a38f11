# SPDX-License-Identifier: Apache-2.0
"""Placement by Nova's client of it.

What that has no function for, and what it counts for an instance of a host's groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects

from nova_gpu.core import exception, names

# Of traits
_VERSION = "1.6"

# By provider, how many of each resource class
Amounts = Mapping[str, Mapping[str, int]]
# Somebody else may write what the instance has, as a move that ends.
_ATTEMPTS = 3


def get(client: Any, url: str) -> Any:
    """Return the body of Placement's answer.

    :param client: nova.scheduler.client.report.SchedulerReportClient
    :raises PlacementFailed: where there is none to use
    """
    answer = client.get(url, version=_VERSION)
    if answer.status_code != 200:
        raise exception.PlacementFailed(url, f"{answer.status_code} {answer.text}")
    return answer.json()


def allocations(client: Any, instance_uuid: str, providers: Collection[str]) -> dict[str, Any]:
    """Return what Placement counts for the instance of GPUs of those *providers*.

    :param client: Nova's report client
    """
    answer = read_consumer(client, instance_uuid)["allocations"]
    return {
        uuid: item
        for uuid, item in answer.items()
        if uuid in providers and gpus_in(item["resources"])
    }


def write_allocations(
    client: Any, instance: objects.Instance, providers: Collection[str], amounts: Amounts
) -> bool:
    """Write *amounts* as the instance's allocation of *providers*; return whether there is room.

    Its other allocations stay.

    :param client: Nova's report client
    :raises PlacementFailed: where others write the same all the time
    """
    for _ in range(_ATTEMPTS):
        consumer = read_consumer(client, instance.uuid)
        try:
            return write_consumer(client, instance, consumer, providers, amounts)
        except nova_exception.AllocationUpdateFailed:
            continue
    raise exception.PlacementFailed(
        f"/allocations/{instance.uuid}", "others write it all the time", verb="PUT"
    )


def read_consumer(client: Any, instance_uuid: str) -> dict[str, Any]:
    """Return all that Placement counts for the instance, with its generation.

    :param client: Nova's report client
    """
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
    beside: Callable[[], dict[str, Any]] = dict,
) -> bool:
    """Write once what :func:`write_allocations` does, over the former *consumer*.

    :param consumer: the answer of :func:`read_consumer`
    :param beside: what else it is to count, where it counts nothing
    :raises nova.exception.AllocationUpdateFailed: where that has changed since
    """
    counted = dict(consumer["allocations"] or beside())
    for uuid in {*providers, *amounts}:
        resources = counted.pop(uuid, {}).get("resources", {})
        rest = {
            name: item for name, item in resources.items() if name not in names.RESOURCE_CLASSES
        }
        if wanted := {**rest, **amounts.get(uuid, {})}:
            counted[uuid] = {"resources": wanted}
    payload = {
        "allocations": counted,
        "project_id": instance.project_id,
        "user_id": instance.user_id,
        "consumer_generation": consumer.get("consumer_generation"),
    }
    context = nova_context.get_admin_context()
    return bool(client.put_allocations(context, instance.uuid, payload))


def gpus_in(resources: Mapping[str, int]) -> int:
    """Return how many GPUs and vGPUs an allocation of one provider has."""
    return sum(resources.get(name, 0) for name in names.RESOURCE_CLASSES)
