# SPDX-License-Identifier: Apache-2.0
"""Placement by Nova's client of it: what that has no function for, and what it counts for an
instance of a host's groups."""

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
    """The body of Placement's answer.

    :param client: nova.scheduler.client.report.SchedulerReportClient
    :raises PlacementFailed: where there is none to use
    """
    answer = client.get(url, version=_VERSION)
    if answer.status_code != 200:
        raise exception.PlacementFailed(url, f"{answer.status_code} {answer.text}")
    return answer.json()


def allocations(client: Any, instance_uuid: str, providers: Collection[str]) -> dict[str, Any]:
    """What Placement counts for the instance of GPUs of those *providers*

    :param client: Nova's report client
    """
    context = nova_context.get_admin_context()
    found = client.get_allocs_for_consumer(context, instance_uuid)["allocations"]
    return {
        uuid: each for uuid, each in found.items() if uuid in providers and _gpus(each["resources"])
    }


def write_allocations(
    client: Any,
    instance: objects.Instance,
    providers: Collection[str],
    amounts: Amounts,
    beside: Callable[[], dict[str, Any]] = dict,
) -> bool:
    """Has Placement count *amounts* for the instance, and no other GPUs of *providers*; whether it
    has room for that. What else it counts for the instance stays.

    :param client: Nova's report client
    :param beside: what it is to count beside, where it counts nothing
    :raises PlacementFailed: where others write the same all the time
    """
    context = nova_context.get_admin_context()
    for _ in range(_ATTEMPTS):
        found = client.get_allocs_for_consumer(context, instance.uuid)
        counted = found["allocations"] or beside()
        for uuid in {*providers, *amounts}:
            resources = counted.pop(uuid, {}).get("resources", {})
            rest = {
                name: each for name, each in resources.items() if name not in names.RESOURCE_CLASSES
            }
            if wanted := {**rest, **amounts.get(uuid, {})}:
                counted[uuid] = {"resources": wanted}
        payload = {
            "allocations": counted,
            "project_id": instance.project_id,
            "user_id": instance.user_id,
            "consumer_generation": found.get("consumer_generation"),
        }
        try:
            return bool(client.put_allocations(context, instance.uuid, payload))
        except nova_exception.AllocationUpdateFailed:
            continue
    raise exception.PlacementFailed(
        f"/allocations/{instance.uuid}", "others write it all the time", verb="PUT"
    )


def _gpus(resources: Mapping[str, int]) -> bool:
    return any(name in resources for name in names.RESOURCE_CLASSES)
