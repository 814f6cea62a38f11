# SPDX-License-Identifier: Apache-2.0
"""Requests of the scheduler to Placement; all of them read, except the one that creates a trait.

Each function that queries Placement raises PlacementFailed if it gets no usable answer.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib import parse

from keystoneauth1 import exceptions as ks_exc
from nova import context as nova_context
from nova.scheduler.client import report

from nova_gpu.core import exception, names
from nova_gpu.core.flavor.request import Request
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.model import GroupKey
from nova_gpu.core.placement import closing_trait
from nova_gpu.core.placement.inventory import Inventory
from nova_gpu.core.scheduling.no_valid_host import Supply

_VERSION = report.SAME_SUBTREE_VERSION
# The default of Nova's [scheduler]max_placement_results
_MOST_CANDIDATES = 1000
# The number of candidates that are looked at, and where some nodes do not count
_FEW = 4
_MOST_OF_IGNORED = 100
# With more groups than this the reason of a refusal does not count GPUs. Each group costs two
# requests to Placement, one after another, and a user can cause refusals as often as they like.
_MOST_COUNTED = 10
_GROUP_PARAMETER = re.compile(r"(resources|required|member_of|in_tree)(.*)")


def make_closing_traits(context: nova_context.RequestContext) -> None:
    """Make sure that Placement knows the traits of closed hosts that each query forbids."""
    for trait in closing_trait.declared():
        if trait.is_in_force is None:
            _make_trait(context, trait.name)


def _make_trait(context: nova_context.RequestContext, trait: str) -> None:
    url = f"/traits/{trait}"
    try:
        client = report.report_client_singleton()
        answer = client.put(url, None, version=_VERSION, global_request_id=context.global_id)
    except ks_exc.ClientException as e:
        raise exception.PlacementFailed(url, str(e), verb="PUT") from e
    if answer.status_code not in (201, 204):
        reason = f"{answer.status_code} {answer.text}"
        raise exception.PlacementFailed(url, reason, verb="PUT")


def known_traits(
    context: nova_context.RequestContext, prefix: str = names.TRAIT_GPU
) -> frozenset[str]:
    """Return the traits that begin with *prefix* and that at least one provider has now."""
    url = f"/traits?name=startswith:{prefix}&associated=true"
    return frozenset(_get(context, url)["traits"])


@dataclasses.dataclass(frozen=True, slots=True)
class PermittedHosts:
    """The hosts that a request permits.

    ``in_tree`` is the UUID of the only permitted node, ``None`` for any. ``roots`` are those of the
    permitted zone and aggregates, ``None`` if the request has none. ``ignored`` are the UUIDs of
    nodes that Nova leaves out, such as the source of a move.
    """

    in_tree: str | None = None
    roots: frozenset[str] | None = None
    ignored: frozenset[str] = frozenset()

    def permits(self, root: str) -> bool:
        return root not in self.ignored and (self.roots is None or root in self.roots)


ANYWHERE = PermittedHosts()


def has_candidate(
    context: nova_context.RequestContext, querystring: str, ignored: Collection[str] = ()
) -> bool:
    """Return whether Placement has an allocation candidate for the query, as :func:`nodes`."""
    holders = nodes(context, querystring, ignored)
    return holders is None or bool(holders)


def nodes(
    context: nova_context.RequestContext, querystring: str, ignored: Collection[str] = ()
) -> frozenset[str] | None:
    """Return the UUIDs of the nodes with an allocation candidate for the query.

    Those of shared providers are among them. Return ``None`` if there are too many to know all.
    Return none if the query names a trait that Placement does not know. If that is one of closed
    hosts, which every query names, it is created again first.

    :param querystring: the query of a nova.scheduler.utils.ResourceRequest, which is sent
        :func:`narrowed`
    """
    limit = _MOST_OF_IGNORED if ignored else _FEW
    url = f"/allocation_candidates?{narrowed(querystring, limit)}"
    unknown: dict[str, Any] = {"allocation_requests": []}
    answer = _get(context, url, unknown_trait=unknown)
    if answer is unknown:
        # Query again even if the trait is not new: another scheduler may just have created it.
        make_closing_traits(context)
        answer = _get(context, url, unknown_trait=unknown)
    candidates = answer["allocation_requests"]
    if len(candidates) == limit:
        return None
    roots = {
        answer["provider_summaries"][uuid]["root_provider_uuid"]
        for candidate in candidates
        for uuid in candidate["allocations"]
    }
    return frozenset(roots - set(ignored))


def room(context: nova_context.RequestContext, querystring: str, resource_class: str) -> int | None:
    """Return an upper limit for the number of instances that the free GPUs suffice for.

    Return ``None`` if it is unknown, because there are too many candidates or none.

    :param querystring: the query for one instance, as in :func:`has_candidate`
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
        # Each instance gets all its GPUs from one provider, and the remainder there is unusable.
        return sum(card // smallest for card in free.values())
    return sum(free.values()) // smallest


def narrowed(querystring: str, limit: int = 1) -> str:
    """Return *querystring* reduced to GPUs and the host's own resources, for *limit* candidates.

    The reduced query has a candidate whenever the whole one has. The groups of other devices are
    left out, because Placement enumerates their combinations, and because Nova sends the whole
    query a moment later anyway.
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
    """Return the UUID of the provider of the compute node *name*, ``None`` if there is none."""
    url = f"/resource_providers?{parse.urlencode({'name': name})}"
    answer = _get(context, url)["resource_providers"]
    return answer[0]["uuid"] if answer else None


def groups(context: nova_context.RequestContext, root: str, nodename: str) -> dict[str, GroupKey]:
    """Return the groups of GPUs and vGPUs on a compute node, by the UUID of their provider."""
    answer = _get(context, f"/resource_providers?in_tree={root}")["resource_providers"]
    keys = {
        provider["uuid"]: names.parse_provider_name(nodename, provider["name"])
        for provider in answer
    }
    return {uuid: key for uuid, key in keys.items() if key}


def members(context: nova_context.RequestContext, querystring: str) -> frozenset[str] | None:
    """Return the UUIDs of the providers in the aggregates that the query permits.

    Return ``None`` if it permits all.
    """
    query = [pair for pair in parse.parse_qsl(querystring) if pair[0] == "member_of"]
    if not query:
        return None
    answer = _get(context, f"/resource_providers?{parse.urlencode(query)}")
    return frozenset(provider["uuid"] for provider in answer["resource_providers"])


def providers(
    context: nova_context.RequestContext, group: GroupRequest, scope: PermittedHosts = ANYWHERE
) -> list[str]:
    """Return the UUIDs of the providers with the traits of *group*, with or without free GPUs."""
    query = _traits(group)
    if scope.in_tree:
        query["in_tree"] = scope.in_tree
    url = f"/resource_providers?{parse.urlencode(query)}"
    answer = _get(context, url, unknown_trait={"resource_providers": []})
    return [
        provider["uuid"]
        for provider in answer["resource_providers"]
        if scope.permits(provider["root_provider_uuid"])
    ]


def supplies(
    context: nova_context.RequestContext, request: Request, scope: PermittedHosts
) -> Iterator[Supply]:
    """Yield a supply for each group of *request* that no single provider can serve now.

    Placement is queried about a group only when the iterator reaches it.
    """
    for group in request.groups:
        anywhere = scope.roots is None and not scope.ignored
        if anywhere and _has_free(context, group, request.resource_class, scope.in_tree):
            continue
        uuids = providers(context, group, scope)
        if len(uuids) > _MOST_COUNTED:
            yield Supply(group, len(uuids), None)
            continue
        own = offers(context, uuids, request.resource_class)
        # A request that is bound to some hosts shows nothing about the GPUs of other hosts.
        unmet = () if own or scope != ANYWHERE else _unmet(context, group, request.resource_class)
        yield Supply(group, len(uuids), own, tuple(itertools.islice(unmet, 1)))


def _unmet(
    context: nova_context.RequestContext, group: GroupRequest, resource_class: str
) -> Iterator[str]:
    """Yield those traits of *group*, required or forbidden, that alone exclude every GPU."""
    for trait in sorted(group.required_traits | group.forbidden_traits):
        required = frozenset({names.TRAIT_GPU} | ({trait} & group.required_traits))
        alone = GroupRequest("", 1, required, frozenset({trait} & group.forbidden_traits))
        uuids = providers(context, alone)[: _MOST_COUNTED + 1]
        there = (_inventory(context, uuid, resource_class) for uuid in uuids[:_MOST_COUNTED])
        if len(uuids) <= _MOST_COUNTED and not any(there):
            yield trait


def _has_free(
    context: nova_context.RequestContext,
    group: GroupRequest,
    resource_class: str,
    in_tree: str | None,
) -> bool:
    """Return whether a single provider can serve *group* with free GPUs."""
    query = {"resources": f"{resource_class}:{max(group.count, 1)}", **_traits(group)}
    if in_tree:
        query["in_tree"] = in_tree
    # Placement takes a suffixed request group from a single provider.
    pairs = [("limit", "1"), *((f"{name}_GPU", value) for name, value in query.items())]
    url = f"/allocation_candidates?{parse.urlencode(pairs)}"
    answer = _get(context, url, unknown_trait={"allocation_requests": []})
    return bool(answer["allocation_requests"])


def _traits(group: GroupRequest) -> dict[str, str]:
    traits = [*group.required_traits, *(f"!{trait}" for trait in group.forbidden_traits)]
    return {"required": ",".join(sorted(traits))} if traits else {}


def traits(context: nova_context.RequestContext, uuid: str) -> frozenset[str]:
    """Return the traits of a provider; empty if the provider has been deleted."""
    answer = _get(context, f"/resource_providers/{uuid}/traits", missing={"traits": []})
    return frozenset(answer["traits"])


def offers(
    context: nova_context.RequestContext,
    uuids: Iterable[str],
    resource_class: str = names.RESOURCE_CLASS,
) -> list[Inventory]:
    """Return the inventory and usage of *resource_class* of each provider that has the class.

    This sends two requests for each provider.
    """
    return [offer for uuid in uuids if (offer := _offer(context, uuid, resource_class))]


def offers_of_host(
    context: nova_context.RequestContext, request: Request, part: GroupRequest, root: str
) -> Mapping[str, Inventory]:
    """Return the inventories of the providers of one host that could serve *part*, by UUID."""
    return {
        uuid: offer
        for uuid in providers(context, part, PermittedHosts(root))
        for offer in offers(context, [uuid], request.resource_class)
    }


def _offer(
    context: nova_context.RequestContext, uuid: str, resource_class: str
) -> Inventory | None:
    """Return ``None`` if the provider lacks the class or has been deleted."""
    inventory = _inventory(context, uuid, resource_class)
    if inventory is None:
        return None
    url = f"/resource_providers/{uuid}/usages"
    usages = _get(context, url, missing={"usages": {}})["usages"]
    return Inventory(
        total=inventory["total"],
        reserved=inventory["reserved"],
        used=usages.get(resource_class, 0),
        max_unit=inventory["max_unit"],
    )


def _inventory(
    context: nova_context.RequestContext, uuid: str, resource_class: str
) -> Mapping[str, int] | None:
    url = f"/resource_providers/{uuid}/inventories"
    answer = _get(context, url, missing={"inventories": {}})
    inventory: Mapping[str, int] | None = answer["inventories"].get(resource_class)
    return inventory


def _get(
    context: nova_context.RequestContext,
    url: str,
    *,
    unknown_trait: Any = None,
    missing: Any = None,
) -> Any:
    """Return the parsed body of Placement's answer to a GET of *url*.

    :param unknown_trait: the result for status 400 because of an unknown trait, ``None`` to raise
    :param missing: the result for status 404, ``None`` to raise
    :raises PlacementFailed: for any other status than 200, or if Placement cannot be reached
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
