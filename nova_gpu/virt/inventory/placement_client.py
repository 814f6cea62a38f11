# SPDX-License-Identifier: Apache-2.0
"""Requests to Placement that Nova's report client has no method for.

They read and write an instance's allocations of GPUs and vGPUs. Each *client* is Nova's
``nova.scheduler.client.report.SchedulerReportClient``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects

from nova_gpu.core import exception, names

# The microversion that has traits
_VERSION = "1.6"

# The amount of each resource class, by the UUID of the provider
Amounts = Mapping[str, Mapping[str, int]]
# Another process, such as the end of a move, may write the instance's allocations meanwhile.
_ATTEMPTS = 3


def get(client: Any, url: str) -> Any:
    """Return the parsed JSON body of Placement's answer to a GET of *url*.

    :raises PlacementFailed: if the status is not 200
    """
    answer = client.get(url, version=_VERSION)
    if answer.status_code != 200:
        raise exception.PlacementFailed(url, f"{answer.status_code} {answer.text}")
    return answer.json()


def allocations(client: Any, instance_uuid: str, providers: Collection[str]) -> dict[str, Any]:
    """Return the instance's allocations of GPUs and vGPUs from *providers*, by provider."""
    answer = read_consumer(client, instance_uuid)["allocations"]
    return {
        uuid: item
        for uuid, item in answer.items()
        if uuid in providers and gpus_in(item["resources"])
    }


def write_allocations(
    client: Any, instance: objects.Instance, providers: Collection[str], amounts: Amounts
) -> bool:
    """Replace the instance's GPUs and vGPUs of *providers* in its allocations by *amounts*.

    The instance's other allocations stay. Return ``False`` if Placement refuses the allocations
    because a provider has too little left.

    :raises PlacementFailed: if other processes changed the allocations in every attempt
    """
    for _ in range(_ATTEMPTS):
        consumer = read_consumer(client, instance.uuid)
        try:
            return write_consumer(client, instance, consumer, providers, amounts)
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
    beside: Callable[[], dict[str, Any]] = dict,
) -> bool:
    """Make one attempt of :func:`write_allocations`; return whether Placement accepted it.

    :param consumer: the instance's allocations now, from :func:`read_consumer`
    :param beside: return the allocations to write in addition to *amounts* if the instance has none
        in Placement
    :raises nova.exception.AllocationUpdateFailed: if the allocations have changed since they were
        read
    """
    counted = dict(consumer["allocations"] or beside())
    for uuid in {*providers, *amounts}:
        resources = counted.pop(uuid, {}).get("resources", {})
        rest = {name: item for name, item in resources.items() if not names.is_gpu_class(name)}
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
    """Return the number of GPUs and vGPUs in the *resources* of one provider's allocation."""
    return sum(resources.get(name, 0) for name in names.RESOURCE_CLASSES)
