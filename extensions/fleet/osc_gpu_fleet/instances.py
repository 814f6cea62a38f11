# SPDX-License-Identifier: Apache-2.0
"""Reads a fleet for plans: hosts with GPUs, their instances, and which of these may be moved."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

from osc_lib import exceptions

from nova_gpu.core import exception, names
from nova_gpu.core.flavor.placement_policy import Topology
from nova_gpu.core.flavor.request import FlavorRequest, GPURequest
from nova_gpu.core.scheduling.capacity import Group, Host
from nova_gpu_fleet.core import extra_specs
from nova_gpu_fleet.core.closed_hosts import RESERVED
from nova_gpu_fleet.core.preemptible import is_preemptible
from osc_gpu import closed_hosts, consumers, flavors, group_list, hosts, query, rest, servers
from osc_gpu.group_list import Provider
from osc_gpu.resource_request import Size
from osc_gpu_fleet import nodes
from osc_gpu_fleet.planning import fleet
from osc_gpu_fleet.planning.fleet import Fleet, Instance, ModulesByGroup, Need, Way

_NOT_NOVAS = "Nova has no such instance"
# Nova then lists a server without its flavor, name and host.
_CELL_DOWN = "the database of its cell does not answer"
# Nova asks each host by RPC, and a host answers in milliseconds or never.
_HOSTS_AT_ONCE = 16
# Added to the traits of groups whose GPUs preemptible instances may get
_FOR_ALL = "for all"
_Amounts = Mapping[str, int]


def requires_topology(request: GPURequest) -> bool:
    """Return whether a host is refused if its GPUs lack the required topology or nearness."""
    return request.arrangement.insists_on_near or any(
        request.arrangement.required(group.count) is not Topology.ANY for group in request.groups
    )


def need(connection: Any, size: Size, request: FlavorRequest) -> Need:
    """Return the resources that one instance takes of its host."""
    placement_query = query.placement_query(connection, size, request)
    # Groups of GPUs and of vGPUs are in one list, and their traits do not distinguish them.
    own = {placement_query.resource_class}
    if is_preemptible(request.extra_specs):
        own.add(_FOR_ALL)
    groups = tuple(
        dataclasses.replace(group, required_traits=group.required_traits | own)
        for group in placement_query.groups
    )
    return Need(groups, tuple(sorted(placement_query.amounts.items())), placement_query.isolate)


def need_of(connection: Any, flavor: Any, *, boots_from_volume: bool = False) -> Need:
    """Return the resources that one instance of a flavor takes of its host.

    :raises CommandError: if no plan can be made for the flavor: for whole GPUs as well as vGPUs, or
        for GPUs that must be near one another
    """
    request = flavors.request_of(flavor)
    size = Size.of(flavor, boots_from_volume=boots_from_volume)
    size_need = need(connection, size, request)
    if request.asks_for_gpus and request.asks_for_vgpus:
        raise exceptions.CommandError(
            f"{flavor.name} asks for whole GPUs and for vGPUs; plan with two flavors, one that "
            "asks for the whole GPUs and one that asks for the vGPUs"
        )
    if request.whole and requires_topology(request.whole):
        key = names.NEAR if request.whole.arrangement.insists_on_near else names.TOPOLOGY
        stated = request.extra_specs[key]
        raise exceptions.CommandError(
            f"{flavor.name} requires {key} {stated}, and only hosts know which of their free GPUs "
            "are near one another; plan with a flavor that asks for all GPUs of a host"
        )
    return size_need


def read(connection: rest.CachedConnection) -> Fleet:
    """Return the fleet, as Placement and Nova show it.

    :raises NotPermitted: if policy does not permit the user to read it
    """
    answer = group_list.read(connection, reserved=False)
    roots = nodes.by_name(connection)
    with rest.clean_refusals("Nova"):
        listed = connection.compute.servers(details=True, all_projects=True)
    known = {server.id: server for server in listed}
    by_host: dict[str, list[tuple[Provider, Mapping[str, int]]]] = defaultdict(list)
    for group in zip(answer, consumers.read(connection, answer, listed), strict=True):
        by_host[group[0].host].append(group)
    summaries = hosts.summaries(connection, {roots[name] for name in by_host if name in roots})
    up, reserved = nodes.up(connection), closed_hosts.by_trait(connection, RESERVED)
    made, members, shared = [], {}, {}
    for name, of_host in by_host.items():
        listed_groups = [provider for provider, _ in of_host]
        held_by = _held(amounts for _, amounts in of_host)
        root = roots.get(name)
        servers_there = {consumer: known.get(consumer) for consumer in held_by}
        own, taken = _own(connection, root, summaries.get(root or ""), servers_there)
        to_all = () if root in reserved else (_FOR_ALL,)
        groups = tuple(
            dataclasses.replace(
                group.group, traits=group.group.traits | {group.resource_class, *to_all}
            )
            for group in listed_groups
        )
        made.append(Host(name, listed_groups[0].unusable, True, own, groups))
        there = []
        for consumer, held in held_by.items():
            server = known.get(consumer) or known.get(
                consumers.moving(connection, consumer, name) or ""
            )
            amounts = taken.get(consumer, {})
            instance = _instance(
                connection, consumer, server, name, held, groups, amounts, name in up
            )
            is_fixed = instance.way is None and not (
                server and is_preemptible(servers.request_of(server).extra_specs)
            )
            there.append(dataclasses.replace(instance, is_fixed=is_fixed))
        members[name] = there, groups
        if cards := _shared(listed_groups):
            shared[name] = cards
    modules = _modules(connection, members, known, up)
    instances: list[Instance] = []
    for there, groups in members.values():
        with_sets = [
            dataclasses.replace(instance, sets=modules.get(instance.uuid, ())) for instance in there
        ]
        instances += fleet.with_last_set(with_sets, groups)
    return Fleet(tuple(made), tuple(instances), shared)


def _modules(
    connection: Any,
    members: Mapping[str, tuple[Sequence[Instance], Sequence[Group]]],
    known: Mapping[str, Any],
    up: Container[str],
) -> Mapping[str, ModulesByGroup]:
    """Return the modules of servers on boards, by the server's uuid, as their hosts report them.

    Only boards are asked about that an instance may leave. Several hosts are asked at the same
    time. A host that does not answer is not asked again: each of its answers would take a minute.

    :param members: the instances of each host, and its groups
    """

    def of_host(name: str) -> dict[str, ModulesByGroup]:
        there, groups = members[name]
        matter = {
            number for instance in there if not instance.is_fixed for number, _ in instance.held
        }
        sets: dict[str, ModulesByGroup] = {}
        with contextlib.suppress(exceptions.CommandError):
            for instance in there:
                server = known.get(instance.uuid)
                boards = [(number, own) for number, own in instance.held if groups[number].board]
                if server and len(boards) == 1:
                    ((number, own),) = boards
                    board = groups[number].board
                    # One that has all that is taken is not asked (:func:`fleet.with_last_set`).
                    if number in matter and board and len(board.taken) > own:
                        sets[instance.uuid] = _sets(connection, server, number, own)
        return sets

    there = [name for name in members if name in up]
    with futures.ThreadPoolExecutor(_HOSTS_AT_ONCE) as pool:
        return dict(itertools.chain.from_iterable(map(dict.items, pool.map(of_host, there))))


def _sets(connection: Any, server: Any, number: int, count: int) -> ModulesByGroup:
    """Return the modules of group *number* that a running server has by its diagnostics.

    :raises CommandError: if its host does not answer
    """
    if server.status == "SHUTOFF":
        return ()
    listed, _ = servers.cards(connection, server)
    modules = tuple(sorted(card["module"] for card in listed if "module" in card))
    return ((number, modules),) if len(modules) == count else ()


def _own(
    connection: Any, root: str | None, summary: Any, there: Mapping[str, Any]
) -> tuple[_Amounts, Mapping[str, _Amounts]]:
    """Return what a node has free of resources other than GPUs, and what each consumer takes.

    Amounts are by resource class, and those of consumers also by the consumer's uuid.

    :param root: the node's uuid; without one the result is empty
    :param summary: the node's summary (:func:`osc_gpu.hosts.summaries`), or ``None``
    :param there: the server of each consumer of the node's GPUs, ``None`` if Nova knows none
    """
    if root is None:
        return {}, {}
    get = functools.partial(rest.of_provider, connection, root)
    if summary:
        counts = summary["resources"]
        used = {name: allocation["used"] for name, allocation in counts.items()}
        own = {name: item["capacity"] - used[name] for name, item in counts.items()}
        if all(server and server.flavor for server in there.values()):
            taken = {uuid: _of_flavor(server, used) for uuid, server in there.items()}
            # An image may request other resources, for example dedicated processors.
            if all(
                sum(numbers.get(name, 0) for numbers in taken.values()) <= used[name]
                for name in used
            ):
                return own, taken
    else:
        usages = get("usages")
        own = {
            name: int((inventory["total"] - inventory["reserved"]) * inventory["allocation_ratio"])
            - usages.get(name, 0)
            for name, inventory in get("inventories").items()
        }
    return own, {uuid: allocation["resources"] for uuid, allocation in get("allocations").items()}


def _of_flavor(server: Any, used: Container[str]) -> _Amounts:
    """Return what the server's flavor takes of its node, of the resource classes *used*."""
    from_volume = servers.boots_from_volume(server)
    size = Size.of(server.flavor, boots_from_volume=from_volume)
    amounts = query.amounts(size, servers.request_of(server))
    return {name: amount for name, amount in amounts.items() if name in used}


def _held(groups: Iterable[Mapping[str, int]]) -> Mapping[str, dict[int, int]]:
    """Return how many GPUs a consumer has, by its uuid and the index of their group."""
    counts_by_consumer: dict[str, dict[int, int]] = defaultdict(dict)
    for number, amounts in enumerate(groups):
        for consumer, amount in amounts.items():
            counts_by_consumer[consumer][number] = amount
    return counts_by_consumer


def _shared(listed: list[Provider]) -> tuple[frozenset[int], ...]:
    """Return the sets of two or more groups, as indexes in *listed*, that may share cards.

    These are groups of vGPUs of one product, and all groups that nova-gpu did not make.
    """
    by_product: dict[str, set[int]] = defaultdict(set)
    for number, group in enumerate(listed):
        if group.key is None or group.key.is_in_parts:
            by_product[group.product].add(number)
    return tuple(frozenset(groups) for groups in by_product.values() if len(groups) > 1)


def _instance(
    connection: Any,
    consumer: str,
    server: Any,
    host: str,
    held: Mapping[int, int],
    groups: tuple[Group, ...],
    taken: _Amounts,
    up: bool,
) -> Instance:
    mine = tuple(sorted(held.items()))
    amounts = tuple(sorted(taken.items()))

    def stays(reason: str) -> Instance:
        name = (server.name if server else None) or ""
        return Instance(consumer, name, host, Need((), amounts), mine, None, reason)

    if server is None:
        return stays(_NOT_NOVAS)
    if consumer != server.id:
        return stays(fleet.WAITS)
    if server.flavor is None:
        return stays(_CELL_DOWN)
    request = servers.request_of(server)
    try:
        wishes = extra_specs.MOVE.of(request.extra_specs) or extra_specs.Consent.LIVE
        wanted = need(connection, Size.of(server.flavor), request)
        near = request.whole is not None and requires_topology(request.whole)
    except (exception.InvalidExtraSpec, query.Unservable) as e:
        return stays(f"its flavor cannot be used: {e}")
    all_of = sum(part.count for part in wanted.groups) == sum(held.values())
    if reason := _obstacle(server, up=up, near=near, all_of=all_of):
        return stays(reason)
    traits = frozenset[str]().union(*(groups[number].traits for number in held))
    qemu = names.known_values(names.TRAIT_HYPERVISOR, traits) == {names.QEMU}
    live = qemu and names.RESOURCE_CLASS not in traits  # vGPUs of a KVM guest
    way, reason = fleet.permitted_way(server.status, wishes, live=live, keeps_disk=qemu)
    if way is None:
        return stays(reason)
    like = tuple(_kept_traits(traits, way))
    parts = tuple(
        dataclasses.replace(part, required_traits=part.required_traits.union(like))
        for part in wanted.groups
    )
    there = Need(parts, amounts, wanted.isolate)
    return Instance(consumer, server.name, host, there, mine, way)


def _obstacle(server: Any, *, up: bool, near: bool, all_of: bool) -> str:
    """Return why the server cannot be moved, whatever its flavor permits; empty if it can.

    :param up: whether its host's compute service is up
    :param near: whether its flavor requires GPUs that are near one another
    :param all_of: whether it has as many GPUs as its flavor requests
    """
    if not up:
        return "its host's compute service is down"
    if server.is_locked:
        return "it is locked"
    if server.task_state:
        return f"it is busy: {server.task_state}"
    if near:
        return (
            f"its flavor requires {names.TOPOLOGY}, and only hosts know which GPUs are near one "
            "another"
        )
    if not all_of:
        return "it does not have what its flavor asks for, or it has both GPUs and vGPUs"
    return ""


def _kept_traits(traits: frozenset[str], way: Way) -> Iterator[str]:
    """Yield those of an instance's GPUs' *traits* that GPUs at the destination must have, too.

    A guest keeps its hypervisor, and in a live migration also its vGPU type and the model of the
    cards.
    """
    prefixes: tuple[str, ...] = (names.TRAIT_HYPERVISOR,)
    if way is Way.LIVE:
        prefixes += (names.TRAIT_VGPU_TYPE, names.TRAIT_MODEL)
    return (trait for trait in traits if trait.startswith(prefixes))
