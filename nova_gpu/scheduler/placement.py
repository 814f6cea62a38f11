# SPDX-License-Identifier: Apache-2.0
"""Requests of the scheduler to Placement. All only read, except that one creates a trait.

Each function that asks Placement raises PlacementFailed if it gets no usable answer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any
from urllib import parse

from keystoneauth1 import exceptions as ks_exc
from nova import context as nova_context
from nova.scheduler.client import report

from nova_gpu.core import exception, names
from nova_gpu.core.flavor.request import Request
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.placement.inventory import Offer
from nova_gpu.core.scheduling.reasons import Supply

_VERSION = report.SAME_SUBTREE_VERSION
# As Nova's own default
_MOST_CANDIDATES = 1000
# Past so many groups a refusal does not count GPUs: each costs two requests to Placement, one after
# another, and whoever has a flavor can have it refused as often as they like.
_MOST_COUNTED = 10
_GROUP_PARAMETER = re.compile(r"(resources|required|member_of|in_tree)(.*)")


def make_trait(context: nova_context.RequestContext, trait: str) -> bool:
    """Create *trait* in Placement, which refuses unknown ones; return whether it is new."""
    url = f"/traits/{trait}"
    try:
        client = report.report_client_singleton()
        answer = client.put(url, None, version=_VERSION, global_request_id=context.global_id)
    except ks_exc.ClientException as e:
        raise exception.PlacementFailed(url, str(e), verb="PUT") from e
    if answer.status_code not in (201, 204):
        reason = f"{answer.status_code} {answer.text}"
        raise exception.PlacementFailed(url, reason, verb="PUT")
    return bool(answer.status_code == 201)


def known_traits(
    context: nova_context.RequestContext, prefix: str = names.TRAIT_GPU
) -> frozenset[str]:
    """Return the GPU traits, or the traits that begin so, that some provider has now."""
    url = f"/traits?name=startswith:{prefix}&associated=true"
    return frozenset(_get(context, url)["traits"])


def has_candidate(context: nova_context.RequestContext, querystring: str) -> bool:
    """Return whether GET /allocation_candidates has an answer; ``False`` too for an unknown trait.

    The trait of drained hosts, which each query has, is created again if an operator deleted it.

    :param querystring: of a nova.scheduler.utils.ResourceRequest; asked :func:`narrowed`
    """
    url = f"/allocation_candidates?{narrowed(querystring)}"
    unknown: dict[str, Any] = {"allocation_requests": []}
    answer = _get(context, url, unknown_trait=unknown)
    if answer is unknown and make_trait(context, names.DRAINED):
        answer = _get(context, url, unknown_trait=unknown)
    return bool(answer["allocation_requests"])


def first_with_candidate(
    context: nova_context.RequestContext, querystrings: Iterable[tuple[str, str]]
) -> str | None:
    """Return the name of the first of *querystrings* that has a candidate, or ``None``."""
    return next((name for name, query in querystrings if has_candidate(context, query)), None)


def room(context: nova_context.RequestContext, querystring: str, resource_class: str) -> int | None:
    """Return the largest number of instances that there can be GPUs for.

    ``None`` where it is not known.

    :param querystring: as in :func:`has_candidate`
    """
    answer = _get(context, f"/allocation_candidates?{narrowed(querystring, _MOST_CANDIDATES)}")
    candidates = [request["allocations"] for request in answer["allocation_requests"]]
    if len(candidates) >= _MOST_CANDIDATES:
        return None
    amounts: dict[str, set[int]] = defaultdict(set)
    whole: set[int] = set()
    for allocations in candidates:
        taken = {
            uuid: item["resources"].get(resource_class, 0) for uuid, item in allocations.items()
        }
        whole.add(sum(taken.values()))
        for uuid, amount in taken.items():
            if amount:
                amounts[uuid].add(amount)
    free: dict[str, int] = {}
    for uuid in amounts:
        counted = answer["provider_summaries"][uuid]["resources"][resource_class]
        free[uuid] = counted["capacity"] - counted["used"]
    smallest = min(whole, default=0)
    if not smallest:
        return None
    if all(amount == {smallest} for amount in amounts.values()):
        # Each instance has all its GPUs of one provider, and what is left there is of no use.
        return sum(card // smallest for card in free.values())
    return sum(free.values()) // smallest


def narrowed(querystring: str, limit: int = 1) -> str:
    """Return *querystring* reduced to GPUs and the host's own resources, for so many candidates.

    It never asks for more than the whole. The other devices' groups are left out because Placement
    enumerates combinations of them, and the whole will be asked a moment later anyway.
    """
    pairs = parse.parse_qsl(querystring)
    gpus = re.compile(rf"(^|,)({names.RESOURCE_CLASS}|{names.VGPU_RESOURCE_CLASS}):")
    answer = {""} | {
        match[2]
        for name, value in pairs
        if (match := _GROUP_PARAMETER.fullmatch(name))
        and match[1] == "resources"
        and gpus.search(value)
    }
    result = [("limit", str(limit))]
    for name, value in pairs:
        match = _GROUP_PARAMETER.fullmatch(name)
        if (
            (match and match[2] in answer)
            or name == "root_required"
            or (name == "group_policy" and len(answer) > 2)
        ):
            result.append((name, value))
    return parse.urlencode(sorted(result))


def node(context: nova_context.RequestContext, name: str) -> str | None:
    """Return the uuid of the provider of that name, or ``None``."""
    url = f"/resource_providers?{parse.urlencode({'name': name})}"
    answer = _get(context, url)["resource_providers"]
    return answer[0]["uuid"] if answer else None


def providers(
    context: nova_context.RequestContext, group: GroupRequest, in_tree: str | None = None
) -> list[str]:
    """Return the uuids of those with the traits of *group*, whether or not they have GPUs free.

    :param in_tree: the uuid of a compute node's provider, to look at that host alone
    """
    query = _traits(group)
    if in_tree:
        query["in_tree"] = in_tree
    url = f"/resource_providers?{parse.urlencode(query)}"
    answer = _get(context, url, unknown_trait={"resource_providers": []})
    return [provider["uuid"] for provider in answer["resource_providers"]]


def supplies(
    context: nova_context.RequestContext, request: Request, in_tree: str | None
) -> Iterator[Supply]:
    """Yield what there is for each group of *request* of which no provider has enough free.

    Placement is asked about a group when its supply is read.

    :param in_tree: as :func:`providers`
    """
    for group in request.groups:
        if _has_free(context, group, request.resource_class, in_tree):
            continue
        uuids = providers(context, group, in_tree)
        if len(uuids) > _MOST_COUNTED:
            yield Supply(group, len(uuids), None)
            continue
        own = offers(context, uuids, request.resource_class)
        # The one host that a request is bound to has no say in what there is elsewhere.
        unmet = () if own or in_tree else _unmet(context, group, request.resource_class)
        yield Supply(group, len(uuids), own, tuple(unmet))


def _unmet(
    context: nova_context.RequestContext, group: GroupRequest, resource_class: str
) -> Iterator[str]:
    """Yield the traits of *group* that no GPU there is satisfies, whatever else is asked for."""
    for trait in sorted(group.required_traits | group.forbidden_traits):
        required = frozenset({names.TRAIT_GPU} | ({trait} & group.required_traits))
        alone = GroupRequest("", 1, required, frozenset({trait} & group.forbidden_traits))
        uuids = providers(context, alone)
        if len(uuids) <= _MOST_COUNTED and not offers(context, uuids, resource_class):
            yield trait


def _has_free(
    context: nova_context.RequestContext,
    group: GroupRequest,
    resource_class: str,
    in_tree: str | None,
) -> bool:
    """Return whether one of :func:`providers` has as many free as *group* asks for."""
    query = {"resources": f"{resource_class}:{max(group.count, 1)}", **_traits(group)}
    if in_tree:
        query["in_tree"] = in_tree
    # With a suffix, so that it is one provider that has all of it.
    pairs = [("limit", "1"), *((f"{name}_GPU", value) for name, value in query.items())]
    url = f"/allocation_candidates?{parse.urlencode(pairs)}"
    answer = _get(context, url, unknown_trait={"allocation_requests": []})
    return bool(answer["allocation_requests"])


def _traits(group: GroupRequest) -> dict[str, str]:
    traits = [*group.required_traits, *(f"!{trait}" for trait in group.forbidden_traits)]
    return {"required": ",".join(sorted(traits))} if traits else {}


def traits(context: nova_context.RequestContext, uuid: str) -> frozenset[str]:
    """Return the traits of a provider; none of one that is gone by now."""
    answer = _get(context, f"/resource_providers/{uuid}/traits", missing={"traits": []})
    return frozenset(answer["traits"])


def offers(
    context: nova_context.RequestContext,
    uuids: Iterable[str],
    resource_class: str = names.RESOURCE_CLASS,
) -> list[Offer]:
    """Return what each of these providers offers.

    That takes two requests for each.
    """
    return [offer for uuid in uuids if (offer := _offer(context, uuid, resource_class))]


def _offer(context: nova_context.RequestContext, uuid: str, resource_class: str) -> Offer | None:
    """Return ``None`` for a provider without any of the class, or one that is gone by now."""
    url = f"/resource_providers/{uuid}"
    inventories = _get(context, f"{url}/inventories", missing={"inventories": {}})["inventories"]
    usages = _get(context, f"{url}/usages", missing={"usages": {}})["usages"]
    inventory = inventories.get(resource_class)
    if inventory is None:
        return None
    return Offer(
        total=inventory["total"],
        reserved=inventory["reserved"],
        used=usages.get(resource_class, 0),
        max_unit=inventory["max_unit"],
    )


def _get(
    context: nova_context.RequestContext,
    url: str,
    *,
    unknown_trait: Any = None,
    missing: Any = None,
) -> Any:
    """Return the body of the answer.

    The keywords say what stands for one that is 400 or 404.
    """
    try:
        client = report.report_client_singleton()
        answer = client.get(url, version=_VERSION, global_request_id=context.global_id)
        if answer.status_code == 400 and unknown_trait is not None and "trait" in answer.text:
            return unknown_trait
        if answer.status_code == 404 and missing is not None:
            return missing
        if answer.status_code != 200:
            raise exception.PlacementFailed(url, f"{answer.status_code} {answer.text}")
        return answer.json()
    except (ks_exc.ClientException, ValueError) as e:
        raise exception.PlacementFailed(url, str(e)) from e
