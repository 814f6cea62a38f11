# SPDX-License-Identifier: Apache-2.0
"""The order of several hosts for a request, by what they have free."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import TypeVar

from nova_gpu.core.flavor.placement_policy import Distribution, Near
from nova_gpu.core.flavor.request import GPURequest, Request, VGPURequest
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.scheduling import fit
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.core.topology import choose, topology
from nova_gpu.core.topology.choose import Cost
from nova_gpu.core.topology.topology import Cells

_T = TypeVar("_T")

# Hosts are compared by these numbers, the first one first; lower is better.
Rank = tuple[int, ...]

# A NUMA node, its GPUs, and how many of them are free
_Node = tuple[int, int, int]
# The first four numbers of a rank, for one request group
_Part = tuple[int, int, tuple[int, int], Cost]
_FULL: _Part = (1, 0, (0, 0), (0, 0) * len(topology.LEVELS))


def rank(request: Request, report: Report, distribution: Distribution) -> Rank:
    """Return the rank of the host of *report* for *request*; lower ranks are better.

    A rank for vGPUs has the first number below, and how many vGPUs of the requested type the host
    has room for: the fewest first to pack, the most first to spread.

    A rank for whole cards has these numbers, where "the set" are the GPUs that the host would give
    the instance:

    1. 0, or 1 if the host has too few free GPUs, no free set of the size, or does not report which
       GPUs are free.
    2. If the flavor names a topology, required or preferred: on how many more islands than one the
       set is.
    3. If the flavor has ``gpu:near``: how many of the GPUs cannot be on the NUMA node of such a
       device, and how many cannot be behind its switch.
    4. The cost of the set (:data:`nova_gpu.core.topology.choose.Cost`).
    5. How many GPUs would be left free on the host.

    This order packs instances. To spread them, the fifth number counts as better if it is larger,
    and precedes those numbers of the cost that count free GPUs on broken islands.
    """
    if isinstance(request, VGPURequest):
        room = fit.most_free(request, report.divided)
        full = int(room < request.count)
        return full, 0 if full else room if distribution is Distribution.PACK else -room
    parts = [_of_part(request, part, report) for part in request.groups]
    full, apart = (sum(numbers) for numbers in list(zip(*parts, strict=True))[:2])
    far = tuple(map(sum, zip(*(far for _, _, far, _ in parts), strict=True)))
    cost = tuple(map(sum, zip(*(cost for *_, cost in parts), strict=True)))
    # All hosts that are full rank equally.
    left = 0 if full else report.free_gpus - request.count
    if distribution is Distribution.PACK:
        return (full, apart, *far, *cost, left)
    return (full, apart, *far, *cost[0::2], -left, *cost[1::2])


def near_only(request: Request, host_rank: Rank) -> Rank:
    """Return of *host_rank* what the flavor asks for: points 2 and 3 of :func:`rank`.

    By the others several schedulers would send their instances to the same host, the fullest.
    """
    return host_rank[1:4] if isinstance(request, GPURequest) else ()


def of_groups(request: GPURequest, report: Report, amounts: Mapping[int, int]) -> tuple[_Part, ...]:
    """Return a key that sorts ways to serve *request* on one host; lower is better."""
    parts = [
        dict(_by_group(request, dataclasses.replace(request.groups[0], count=count), report)).get(
            number, _FULL
        )
        for number, count in amounts.items()
    ]
    return tuple(sorted(parts, reverse=True))


@functools.lru_cache(maxsize=4096)
def left(report: Report, request: Request, cells: frozenset[int] = frozenset()) -> Report:
    """Return the report that the host would make after it started an instance of *request*.

    What *report* does not tell is estimated: a larger set of a board's cards remains if as many
    cards do. A request that the host has no room for changes nothing.

    :param cells: the NUMA nodes of the guest's cells, from which its GPUs are if possible
    """
    if isinstance(request, VGPURequest):
        divided = report.divided
        taking = fit.taking(request, divided)
        vgpus = tuple(
            (type_id, name, max(count - request.count, 0) if takes else count)
            for (type_id, name, count), takes in zip(divided.vgpus, taking, strict=True)
        )
        sets = tuple(
            tuple((size, min(n, count // size)) for size, n in entry)
            for entry, (*_, count) in zip(divided.sets, vgpus, strict=False)
        )
        return dataclasses.replace(
            report, divided=dataclasses.replace(divided, vgpus=vgpus, sets=sets)
        )
    for part in request.groups:
        cost, number = min(
            ((cost, number) for number, cost in _by_group(request, part, report)),
            default=(_FULL, 0),
        )
        if cost == _FULL or report.free is None:
            continue
        report = _without(report, number, part.count, cells)
    return report


def _without(report: Report, number: int, count: int, cell_nodes: frozenset[int]) -> Report:
    """Return *report* without the best *count* free GPUs of its group at index *number*."""
    cells = choose.rest(report.free[number] if report.free else (), count)
    most = sum(n for *_, n in cells)
    sets, near = report.free_partitions, report.near
    if sets is not None:
        sets = _replaced(
            sets, number, tuple((size, min(n, most // size)) for size, n in sets[number])
        )
    if near is not None:
        near = _replaced(near, number, tuple(min(n, most) for n in near[number]))
    free = _replaced(report.free or (), number, cells)
    nodes = report.nodes
    if nodes is not None:
        nodes = _replaced(nodes, number, _taken(nodes[number], count, cell_nodes))
    return dataclasses.replace(report, free=free, free_partitions=sets, near=near, nodes=nodes)


def _taken(nodes: tuple[_Node, ...], count: int, cell_nodes: frozenset[int]) -> tuple[_Node, ...]:
    """Return *nodes* with *count* fewer free GPUs.

    They are those of the nodes *cell_nodes*, then of one node, the one with the fewest if several
    have as many.
    """
    remaining = list(nodes)

    def order_of(n: int) -> tuple[bool, bool, int]:
        node, _, free = remaining[n]
        return node not in cell_nodes, free < count, abs(free - count)

    order = sorted(range(len(remaining)), key=order_of)
    for number in order:
        node, total, free = remaining[number]
        taken = min(free, count)
        remaining[number], count = (node, total, free - taken), count - taken
    return tuple(remaining)


def _replaced(table: tuple[_T, ...], number: int, entry: _T) -> tuple[_T, ...]:
    return (*table[:number], entry, *table[number + 1 :])


def _of_part(request: GPURequest, part: GroupRequest, report: Report) -> _Part:
    """Return the first four numbers of a rank: those of the host's best group of cards."""
    return min((cost for _, cost in _by_group(request, part, report)), default=_FULL)


def _by_group(
    request: GPURequest, part: GroupRequest, report: Report
) -> Iterator[tuple[int, _Part]]:
    """Yield the index of each group that could serve *part*, with those four numbers."""
    for number, cells in fit.giving(report, request, part):
        yield number, _of_cells(request, part, cells, _far(request, part, report, number))


def _far(request: GPURequest, part: GroupRequest, report: Report, number: int) -> tuple[int, int]:
    near = request.arrangement.near
    if near is Near.ANY:
        return 0, 0
    behind, on_node = report.beside(number, near)
    return max(0, part.count - on_node), max(0, part.count - behind)


def _of_cells(request: GPURequest, part: GroupRequest, cells: Cells, far: tuple[int, int]) -> _Part:
    costs = choose.costs(cells)
    if len(costs) <= part.count:
        return _FULL
    cost = costs[part.count]
    level = choose.LEVELS.get(request.arrangement.topology)
    return 0, 0 if level is None else cost[2 * level] - 1, far, cost
