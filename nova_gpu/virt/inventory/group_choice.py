# SPDX-License-Identifier: Apache-2.0
"""The choice of groups from which an instance of this host gets GPUs, outside Nova's scheduler.

It is made when an instance starts that has none. Placement has the allocation candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from nova import context as nova_context
from nova import objects
from oslo_utils import timeutils

from nova_gpu.core import device, exception, extensions, names
from nova_gpu.core.flavor import query, request_group, summary
from nova_gpu.core.flavor.request import FlavorRequest, Request
from nova_gpu.core.model import GroupKey
from nova_gpu.core.placement import closing_trait
from nova_gpu.virt.inventory import placement_client
from nova_gpu.virt.inventory.placement_client import Amounts

_MOST_CANDIDATES = 64
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

    :param allocate: allocate an amount from each of some providers; return ``None`` if Placement
        refuses, because another instance got the GPUs since they were read
    :raises NoneFree: if no combination of groups has enough free GPUs that fit
    """
    remedy = _remedy(flavor)
    node = client.get_provider_by_name(nova_context.get_admin_context(), nodename)["uuid"]
    _refuse_closed(client, node, flavor, remedy)

    def candidates(requests: Sequence[Request]) -> list[Amounts]:
        return _candidates(client, node, instance, requests, list(ours.values()), flavor)

    for candidate in candidates(flavor.requests):
        amounts = allocate(candidate)
        if amounts is not None:
            return amounts
    lacking = (request for request in flavor.requests if not candidates([request]))
    request = next(lacking, flavor.requests[0])
    raise _none_free(client, request, ours, remedy)


def _refuse_closed(client: Any, node: str, request: FlavorRequest, remedy: str) -> None:
    """Refuse a start on a host that is closed to the flavor's instances."""
    traits = placement_client.get(client, f"/resource_providers/{node}/traits")["traits"]
    for trait in closing_trait.declared():
        if trait.closes(request.extra_specs) and trait.in_force(traits, timeutils.utcnow()):
            raise exception.NoneFree(trait.at_start, remedy)


def _none_free(
    client: Any, request: Request, ours: Mapping[GroupKey, str], remedy: str
) -> exception.NoneFree:
    """Return the error for too few free GPUs in the groups of this host.

    In the log it also names the instances that have GPUs of these groups.
    """
    context = nova_context.get_admin_context()
    resource_class, most = request.resource_class, 0
    holders: set[str] = set()
    for key, uuid in ours.items():
        if device.resource_class_of(key) == resource_class:
            url = f"/resource_providers/{uuid}"
            inventories = placement_client.get(client, f"{url}/inventories")["inventories"]
            inventory = inventories.get(resource_class, {"total": 0, "reserved": 0})
            used = placement_client.get(client, f"{url}/usages")["usages"].get(resource_class, 0)
            most = max(most, inventory["total"] - inventory["reserved"] - used)
            allocated = client.get_allocations_for_resource_provider(context, uuid)
            holders |= allocated.allocations.keys()
    return exception.NoneFree(
        f"{summary.all_of(request)} asked for, at most {most} free on its host",
        remedy,
        f"in use by {', '.join(sorted(holders)) or 'no instance'}",
    )


def _remedy(request: FlavorRequest) -> str:
    """Return the text for the user about what to do if the host has too few free GPUs."""
    remedies = (remedy(request.extra_specs) for remedy in _REMEDIES)
    return next(filter(None, remedies), _ELSEWHERE)


def _candidates(
    client: Any,
    node: str,
    instance: objects.Instance,
    requests: Sequence[Request],
    ours: Sequence[str],
    flavor: FlavorRequest,
) -> list[Amounts]:
    """Return the amounts from each combination of groups of this host that serves *requests* now.

    Those that leave the fewest GPUs free come first.
    """
    known: Collection[str] = ()
    if any(map(query.needs_known, requests)):
        url = f"/traits?name=startswith:{names.TRAIT_GPU}&associated=true"
        known = placement_client.get(client, url)["traits"]
    groups = []
    for request in requests:
        parts = query.resolved(request, known)
        if parts is None:
            return []
        groups += [(request.resource_class, part) for part in parts if part.count]
    forbidden = frozenset[str]().union(*(part.forbidden_traits for _, part in groups))
    if forbidden:
        # Placement refuses a query with a trait that it does not know, which no provider has.
        url = f"/traits?name=in:{','.join(sorted(forbidden))}"
        forbidden &= frozenset(placement_client.get(client, url)["traits"])
    pairs = [("limit", str(_MOST_CANDIDATES))]
    pairs += [("group_policy", "isolate" if flavor.is_isolated else "none")] * (len(groups) > 1)
    for number, (resource_class, part) in enumerate(groups):
        # Placement takes a group with a suffix from a single provider.
        pairs.append((f"resources_{number}", f"{resource_class}:{part.count}"))
        pairs.append((f"in_tree_{number}", node))
        traits = [
            *part.required_traits,
            *(f"!{trait}" for trait in part.forbidden_traits & forbidden),
        ]
        pairs.append((f"required_{number}", ",".join(sorted(traits))))
    answer = placement_client.candidates(client, pairs)
    providers = answer["provider_summaries"]
    of_image = instance.image_meta.properties.get("traits_required", ())
    image = frozenset(filter(request_group.is_gpu_trait, of_image))
    choices = []
    for candidate in answer["allocation_requests"]:
        amounts = {uuid: item["resources"] for uuid, item in candidate["allocations"].items()}
        there = {trait for uuid in amounts for trait in providers[uuid]["traits"]}
        if amounts.keys() <= {*ours} and image.issubset(there):
            left = sum(
                providers[uuid]["resources"][name]["capacity"]
                - providers[uuid]["resources"][name]["used"]
                - amount
                for uuid, resources in amounts.items()
                for name, amount in resources.items()
            )
            choices.append((left, sorted(map(ours.index, amounts)), amounts))
    return [amounts for *_, amounts in sorted(choices, key=lambda choice: choice[:2])]
