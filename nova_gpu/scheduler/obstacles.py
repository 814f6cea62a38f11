# SPDX-License-Identifier: Apache-2.0
"""The condition of a request that no host with its GPUs meets, found by queries without it.

Placement only tells whether there is a candidate. So the query is sent again without one group of
conditions at a time, and the first one without which there is a candidate is the obstacle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from urllib import parse

from nova_gpu.core import names
from nova_gpu.core.exception import Reason
from nova_gpu.core.flavor import request_group
from nova_gpu.core.flavor.request import Request
from nova_gpu.core.placement import closing_trait
from nova_gpu.core.scheduling import no_valid_host
from nova_gpu.scheduler import placement

# The prefixes of traits that close a host to the request, each tried together with those before it
_CLOSING = (*(trait.name for trait in reversed(closing_trait.declared())), names.DISABLED)
# With more traits than this the guilty one is not sought.
_MOST_TRAITS = 6

Pairs = Sequence[tuple[str, str]]


def closing(
    pairs: Pairs, request: Request, is_served: Callable[[Pairs], bool], *, bound: bool
) -> Reason | None:
    """Return a reason if only hosts that are closed to new instances have the GPUs."""
    for prefix in _CLOSING:
        wider = _without_traits(pairs, functools.partial(_begins, f"!{prefix}"))
        if wider != pairs and is_served(wider):
            return no_valid_host.closed(request, prefix, bound=bound)
        pairs = wider
    return None


def gpus_only(pairs: Pairs) -> Pairs:
    """Return the query without all that is not about GPUs, or about which hosts are permitted.

    Placement needs a resource for the conditions on hosts: the least amount of memory.
    """
    fewer = [
        (name, ",".join([*filter(_is_of_gpus, value.split(",")), "MEMORY_MB:1"]))
        if name == "resources"
        else (name, "none" if name == "group_policy" else value)
        for name, value in pairs
    ]
    return _without_traits(fewer, _is_hosts)


def other(pairs: Pairs, is_served: Callable[[Pairs], bool]) -> str | None:
    """Return the condition that excludes the hosts with the GPUs, ``None`` if none does alone."""
    for text, wider in _wider(pairs):
        if is_served(wider):
            return text
    return None


def _wider(pairs: Pairs) -> Iterator[tuple[str, Pairs]]:
    traits = sorted(filter(_is_hosts, _traits(pairs)))
    for trait in traits if len(traits) <= _MOST_TRAITS else ():
        text = f"without the trait {trait[1:]}" if trait[0] == "!" else f"with the trait {trait}"
        yield f"on no host {text}", _without_traits(pairs, {trait}.__contains__)
    if len(traits) > 1:
        stated = ", ".join(traits[:2]) + ", ..." * (len(traits) > 2)
        yield f"on no host with the traits {stated}", _without_traits(pairs, _is_hosts)
    if ("group_policy", "isolate") in pairs:
        anyhow = [pair for pair in pairs if pair[0] != "group_policy"]
        text = "not from another group of GPUs for each request group (group_policy=isolate)"
        yield text, [*anyhow, ("group_policy", "none")]
    for resource, amount in _hosts_resources(pairs):
        fewer = _with_resources(pairs, resource.__ne__)
        yield f"on no host with {amount} {resource}", fewer


def _hosts_resources(pairs: Pairs) -> list[tuple[str, str]]:
    items = [item for name, value in pairs if name == "resources" for item in value.split(",")]
    return [(item.split(":")[0], item.split(":")[1]) for item in items if not _is_of_gpus(item)]


def _is_of_gpus(item: str) -> bool:
    """Return whether *item*, a resource class and an amount, is of GPUs or vGPUs."""
    return names.is_gpu_class(item.split(":")[0])


def _is_hosts(trait: str) -> bool:
    """Return whether *trait*, which may begin with ``!``, is a property of a host."""
    plain = trait.removeprefix("!")
    return not (request_group.may_be_a_gpus(plain) or plain.startswith(_CLOSING))


def _traits(pairs: Pairs) -> set[str]:
    return {
        trait
        for name, value in pairs
        if name in ("required", "root_required")
        for trait in value.split(",")
    }


def _begins(prefix: str, trait: str) -> bool:
    return trait.startswith(prefix)


def _without_traits(pairs: Pairs, is_dropped: Callable[[str], bool]) -> Pairs:
    return _edited(pairs, ("required", "root_required"), lambda trait: not is_dropped(trait))


def _with_resources(pairs: Pairs, is_kept: Callable[[str], bool]) -> Pairs:
    return _edited(pairs, ("resources",), lambda item: is_kept(item.split(":")[0]))


def _edited(pairs: Pairs, named: Collection[str], is_kept: Callable[[str], bool]) -> Pairs:
    edited = [
        (name, ",".join(filter(is_kept, value.split(","))) if name in named else value)
        for name, value in pairs
    ]
    return [pair for pair in edited if pair[1]]


def pairs(querystring: str) -> Pairs:
    return parse.parse_qsl(placement.narrowed(querystring))
