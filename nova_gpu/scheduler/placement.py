# SPDX-License-Identifier: Apache-2.0
"""What the scheduler asks Placement itself. Everything here only reads.

Each function raises PlacementFailed where there is no answer to use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib import parse

from keystoneauth1 import exceptions as ks_exc
from nova import context as nova_context
from nova.scheduler.client import report

from nova_gpu.core import exception, names
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.placement.inventory import Offer

_VERSION = report.SAME_SUBTREE_VERSION
_GROUP_PARAMETER = re.compile(r"(resources|required|member_of|in_tree)(.*)")


def known_traits(context: nova_context.RequestContext) -> frozenset[str]:
    """The GPU traits that some provider has now."""
    prefix = names.TRAIT_GPU
    url = f"/traits?name=startswith:{prefix}&associated=true"
    return frozenset(_get(context, url)["traits"])


def has_candidate(context: nova_context.RequestContext, querystring: str) -> bool:
    """Whether GET /allocation_candidates has an answer; ``False`` too for a trait nobody knows.

    :param querystring: of a nova.scheduler.utils.ResourceRequest; asked :func:`narrowed`
    """
    url = f"/allocation_candidates?{narrowed(querystring)}"
    answer = _get(context, url, unknown_trait={"allocation_requests": []})
    return bool(answer["allocation_requests"])


def narrowed(querystring: str) -> str:
    """*querystring* reduced to the GPUs and the host's own resources, for one candidate.

    It never asks for more than the whole. The other devices' groups are left out because Placement
    enumerates combinations of them, and the whole will be asked a moment later anyway.
    """
    pairs = parse.parse_qsl(querystring)
    gpus = re.compile(rf"(^|,)({names.RESOURCE_CLASS}|{names.VGPU_RESOURCE_CLASS}):")
    kept = {""} | {
        match[2]
        for name, value in pairs
        if (match := _GROUP_PARAMETER.fullmatch(name))
        and match[1] == "resources"
        and gpus.search(value)
    }
    result = [("limit", "1")]
    for name, value in pairs:
        match = _GROUP_PARAMETER.fullmatch(name)
        if (
            (match and match[2] in kept)
            or name == "root_required"
            or (name == "group_policy" and len(kept) > 2)
        ):
            result.append((name, value))
    return parse.urlencode(sorted(result))


def node(context: nova_context.RequestContext, name: str) -> str | None:
    """The uuid of the provider of that name, or ``None`` where there is none."""
    url = f"/resource_providers?{parse.urlencode({'name': name})}"
    found = _get(context, url)["resource_providers"]
    return found[0]["uuid"] if found else None


def providers(
    context: nova_context.RequestContext, group: GroupRequest, in_tree: str | None = None
) -> list[str]:
    """The uuids of those that have the traits of *group*, whether or not they have GPUs free.

    :param in_tree: the uuid of a compute node's provider, to look at that host alone
    """
    traits = [*group.required_traits, *(f"!{trait}" for trait in group.forbidden_traits)]
    query = {"required": ",".join(sorted(traits))} if traits else {}
    if in_tree:
        query["in_tree"] = in_tree
    url = f"/resource_providers?{parse.urlencode(query)}"
    answer = _get(context, url, unknown_trait={"resource_providers": []})
    return [provider["uuid"] for provider in answer["resource_providers"]]


def offers(
    context: nova_context.RequestContext,
    uuids: Iterable[str],
    resource_class: str = names.RESOURCE_CLASS,
) -> list[Offer]:
    """What each of these providers offers. That takes two requests for each."""
    return [offer for uuid in uuids if (offer := _offer(context, uuid, resource_class))]


def _offer(context: nova_context.RequestContext, uuid: str, resource_class: str) -> Offer | None:
    """``None`` for a provider without any of the class, or one that is gone by now."""
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
    )


def _get(
    context: nova_context.RequestContext,
    url: str,
    *,
    unknown_trait: Any = None,
    missing: Any = None,
) -> Any:
    """The body of the answer. The keywords say what stands for one that is 400 or 404."""
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
