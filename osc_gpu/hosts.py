# SPDX-License-Identifier: Apache-2.0
"""The hosts with GPUs, as Placement and Nova's API show them to an administrator."""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from nova_gpu.core import card_sets, names
from nova_gpu.core.flavor import summary
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.scheduling import capacity
from nova_gpu.core.scheduling.capacity import Group, Host
from nova_gpu.core.topology import affinity
from nova_gpu.core.topology.affinity import Policy
from osc_gpu import closed_hosts, nova_lists, query, rest
from osc_gpu.resource_request import Size

_NO_SUCH_HOST = "Nova has no such host"
# A compute node has one of these left even if its GPUs are all used.
_OWN_CLASSES = ("MEMORY_MB", "VCPU", "PCPU", "DISK_GB")
# As many nodes as a host may have
_MOST_CELLS = 16

Summaries = Mapping[str, Mapping[str, Any]]


def answers(connection: Any, size: Size, request: FlavorRequest) -> list[capacity.Answer]:
    """Return how many instances of a flavor each host could take now, and why not more.

    :raises CommandError: as :func:`read`, and as :func:`osc_gpu.query.placement_query`
    """
    answered = {}
    for part in query.placement_query(connection, size, request).by_class():
        there = read(connection, part, request)
        rows = capacity.answers(part.groups, part.amounts, there, isolate=part.isolate)
        answered[part.resource_class] = {row.host: row for row in rows}
    all_of = [_of_all_classes(host, answered) for host in set().union(*answered.values())]
    return sorted(all_of, key=lambda answer: (-answer.instances, answer.host))


def _of_all_classes(
    host: str, answered: Mapping[str, Mapping[str, capacity.Answer]]
) -> capacity.Answer:
    """Return a host's answer about the class of GPUs of which it has least."""
    rows = [answers[host] for answers in answered.values() if host in answers]
    least = min(rows, key=lambda answer: answer.instances)
    for resource_class, answers in answered.items():
        if host not in answers:
            reason = f"it has no {summary.kind_of(resource_class)}"
            return dataclasses.replace(least, instances=0, reason=reason)
    return least


def read(connection: Any, placement_query: query.Query, request: FlavorRequest) -> list[Host]:
    """Return all compute nodes with a group of the class of GPUs that *placement_query* requests.

    A few answers of Placement cover all groups (:func:`summaries`).

    :raises CommandError: if a service refuses a request, or does not answer
    """
    no_candidates: dict[str, Any] = {"allocation_requests": [], "provider_summaries": {}}
    url = f"/allocation_candidates?{placement_query.text}"
    answer = rest.placement(connection, url, unknown_trait=no_candidates)
    most = max(part.count for part in placement_query.groups)
    groups, known = _groups(connection, placement_query, most)
    candidates = _roots(answer)
    unusable = compute_nodes(connection)
    closed = closed_hosts.to_some(connection, request)

    hosts = []
    kind = summary.kind_of(placement_query.resource_class)
    for root, of_root in groups.items():
        name, reason = unusable.get(root) or unknown_node(connection, root)
        reason = reason or closed.get(root)
        free = _free(known.get(root, {}))
        hosts.append(Host(name, reason, root in candidates, free, tuple(of_root), kind))
    return hosts


def why_never(connection: Any, size: Size, request: FlavorRequest) -> str:
    """Return why no host could have an instance of a flavor if all GPUs in service were free.

    The text is empty if one could.
    """
    try:
        placement_query = query.placement_query(connection, size, request)
    except query.Unservable as e:
        return str(e)
    for part in placement_query.by_class():
        groups, _ = _groups(connection, part, 0)
        if not any(capacity.can_hold(part.groups, of_root) for of_root in groups.values()):
            # Nova's own words for vGPUs are no request.
            stated = [
                item for item in request.requests if item.resource_class == part.resource_class
            ]
            count = sum(group.count for group in part.groups)
            kind = f"{count} {summary.kind_of(part.resource_class)}"
            return f"no host has {summary.all_of(stated[0]) if stated else kind} in service"
    return ""


def too_few_nodes(connection: Any, size: Size, request: FlavorRequest) -> str:
    """Return why no host could have all GPUs of a flavor on the nodes of its NUMA cells.

    The text is empty if one could, or if its guests have no cells. It holds if
    ``[gpu]pci_numa_affinity_policy`` is not set, and for hosts that know the nodes of their GPUs.
    """
    specs, whole = request.extra_specs, request.whole
    cells, policy = affinity.cells(specs), specs.get(affinity.EXTRA_SPEC, Policy.LEGACY)
    if not (whole and cells and policy in affinity.STRICT):
        return ""
    parts = query.placement_query(connection, size, request).by_class()
    part = next(part for part in parts if part.resource_class == names.RESOURCE_CLASS)
    groups, _ = _groups(connection, part, 0)

    def fit(cells: int) -> bool:
        near = ([_on_nodes(group, cells) for group in of_root] for of_root in groups.values())
        return any(capacity.can_hold(part.groups, of_root) for of_root in near)

    if fit(cells):
        return ""
    needed = next(filter(fit, range(cells + 1, _MOST_CELLS + 1)), None)
    more = f"hw:numa_nodes={needed} or " if needed else ""
    nodes = "one NUMA node" if cells == 1 else f"{cells} NUMA nodes"
    return (
        f"no host has {summary.all_of(whole)} on {nodes} ({affinity.EXTRA_SPEC}={policy}); add "
        f"{more}{affinity.EXTRA_SPEC}={Policy.PREFERRED}"
    )


def _on_nodes(group: Group, cells: int) -> Group:
    """Return *group* with the most GPUs that it can have on as many NUMA nodes as *cells*."""
    sizes = names.known_values(names.TRAIT_NUMA_ISLAND, group.traits)
    most = max((int(size) for size in sizes if size.isdecimal()), default=1)
    # Where no two are on one node, the nodes may be unknown, which the policy legacy allows.
    in_service = group.total - group.reserved
    total = min(in_service, most * cells) if most > 1 else in_service
    return dataclasses.replace(group, total=total, reserved=0)


def _groups(
    connection: Any, placement_query: query.Query, most: int
) -> tuple[Mapping[str, list[Group]], Summaries]:
    """Return the groups of the query's class of GPUs, by compute node, and all summaries.

    :param most: as for :func:`groups_of`
    """
    listed = gpu_providers(connection)
    known = summaries(connection, {provider["root_provider_uuid"] for provider in listed})
    groups: dict[str, list[Group]] = defaultdict(list)
    for provider in listed:
        uuid = provider["uuid"]
        by_class = groups_of(connection, uuid, known.get(uuid), most)
        if group := by_class.get(placement_query.resource_class):
            groups[provider["root_provider_uuid"]].append(group)
    return groups, known


def gpu_providers(connection: Any) -> list[Mapping[str, str]]:
    """Return Placement's record of each group: ``uuid``, ``root_provider_uuid``, ``name``."""
    answer = rest.placement(
        connection,
        f"/resource_providers?required={names.TRAIT_GPU}",
        unknown_trait={"resource_providers": []},  # before the first host
    )
    providers: list[Mapping[str, str]] = answer["resource_providers"]
    return providers


def with_free(connection: Any, resource_class: str) -> Summaries:
    """Return the providers of the hosts with a free unit of *resource_class*, by uuid."""
    url = f"/allocation_candidates?resources={resource_class}:1"
    answer: Summaries = rest.placement(connection, url)["provider_summaries"]
    return answer


def summaries(connection: Any, roots: Collection[str]) -> Summaries:
    """Return the summaries of the providers in the trees of *roots*, by the provider's uuid.

    Placement lists usages for one provider at a time, but shows the whole tree of each allocation
    candidate. So candidates for one GPU are requested first, and then, while trees are missing,
    candidates for one unit of memory, of processors and of disk. The result lacks the tree of a
    node with none of these left.
    """
    answer: dict[str, Any] = {}
    for resource_class in names.RESOURCE_CLASSES:
        answer.update(with_free(connection, resource_class))
    for resource_class in _OWN_CLASSES:
        if answer.keys() >= set(roots):
            break
        # Only nodes with GPUs, because there are many others.
        url = (
            f"/allocation_candidates?resources_NODE={resource_class}:1"
            f"&required_GPUS={names.TRAIT_GPU}&same_subtree=_NODE,_GPUS&group_policy=none"
        )
        no_summaries: dict[str, Any] = {"provider_summaries": {}}  # before the first host
        answer.update(
            rest.placement(connection, url, unknown_trait=no_summaries)["provider_summaries"]
        )
    return answer


def _roots(candidates: Mapping[str, Any]) -> frozenset[str]:
    """Return the uuids of the compute nodes that could serve one of the allocation candidates."""
    summaries = candidates["provider_summaries"]
    return frozenset(
        summaries[provider]["root_provider_uuid"]
        for candidate in candidates["allocation_requests"]
        for provider in candidate["allocations"]
    )


def groups_of(
    connection: Any, uuid: str, summary: Mapping[str, Any] | None, most: float
) -> Mapping[str, Group]:
    """Return a provider's counts and traits by the class of GPUs; empty if it is gone.

    :param summary: the provider's, of :func:`summaries`; ``None`` takes three requests
    :param most: with fewer units in service those out of service are read as well, which takes one
        request if no trait states the total: nova-gpu is older on that host
    """
    get = functools.partial(rest.of_provider, connection, uuid)
    if summary:
        traits, counts = frozenset(summary["traits"]), summary["resources"]
        usages = {name: counted["used"] for name, counted in counts.items()}
        in_service = {
            name: counts[name]["capacity"] for name in names.RESOURCE_CLASSES if name in counts
        }
        stated = names.known_values(names.TRAIT_TOTAL, traits)
        total = next((int(text) for text in stated if text.isdecimal()), -1)
        inventories = {
            name: {"total": max(total, amount), "reserved": max(total - amount, 0)}
            for name, amount in in_service.items()
        }
        if any(total < amount < most for amount in in_service.values()):
            inventories = get("inventories")
    elif inventories := get("inventories"):
        traits, usages = frozenset(get("traits")), get("usages")
    return {
        name: Group(
            inventories[name]["total"],
            inventories[name]["reserved"],
            usages.get(name, 0),
            traits,
            card_sets.of_traits(traits),
        )
        for name in names.RESOURCE_CLASSES
        if name in inventories
    }


def _free(summary: Mapping[str, Any]) -> Mapping[str, int]:
    return {
        resource_class: max(counted["capacity"] - counted["used"], 0)
        for resource_class, counted in summary.get("resources", {}).items()
    }


def unknown_node(connection: Any, uuid: str) -> tuple[str, str]:
    """Return name and obstacle, as in :func:`compute_nodes`, of a root provider unknown to Nova."""
    return rest.placement(connection, f"/resource_providers/{uuid}")["name"], _NO_SUCH_HOST


def compute_nodes(connection: Any) -> Mapping[str, tuple[str, str | None]]:
    """Return name and obstacle of each compute node, by the uuid of the node and its provider.

    The obstacle is why no instance with GPUs can start there; ``None`` if one can.
    """
    nodes = {}
    closed = closed_hosts.to_all(connection)
    for node in listed_nodes(connection):
        reason = None
        if node.status != "enabled":
            why = (node.service_details or {}).get("disabled_reason")
            reason = "disabled" + (f": {why}" if why else "")
        elif node.state != "up":
            reason = "down"
        reasons = filter(None, (closed.get(node.id), reason))
        nodes[node.id] = (node.name, "; ".join(reasons) or None)
    return nodes


def listed_nodes(connection: Any) -> list[Any]:
    """Return the compute nodes of Nova, by its API."""
    with rest.clean_refusals("Nova"):
        return list(nova_lists.nodes(connection.compute))


def services(connection: Any) -> Mapping[str, str]:
    """Return each node's service host, which is a migration's destination, by the node's name."""
    return {
        node.name: (node.service_details or {}).get("host", node.name)
        for node in listed_nodes(connection)
    }
