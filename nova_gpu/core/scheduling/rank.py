# SPDX-License-Identifier: Apache-2.0
"""The order of several hosts for a request, by what they have free."""

from __future__ import annotations

from nova_gpu.core.flavor.placement_policy import Distribution, Near
from nova_gpu.core.flavor.request import GPURequest
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.scheduling import fit
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.core.topology import choose, topology
from nova_gpu.core.topology.choose import Cost
from nova_gpu.core.topology.topology import Cells

# Hosts are compared by these numbers, the first one first; lower is better.
Rank = tuple[int, ...]

# The first four numbers of a rank, for one request group
_Part = tuple[int, int, tuple[int, int], Cost]
_FULL: _Part = (1, 0, (0, 0), (0, 0) * len(topology.LEVELS))


def rank(request: GPURequest, report: Report, distribution: Distribution) -> Rank:
    """Return the rank of the host of *report* for *request*; lower ranks are better.

    A rank has these numbers, where "the set" are the GPUs that the host would give the instance:

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
    parts = [_of_part(request, part, report) for part in request.groups]
    full, apart = (sum(numbers) for numbers in list(zip(*parts, strict=True))[:2])
    far = tuple(map(sum, zip(*(far for _, _, far, _ in parts), strict=True)))
    cost = tuple(map(sum, zip(*(cost for *_, cost in parts), strict=True)))
    # All hosts that are full rank equally.
    left = 0 if full else report.free_gpus - request.count
    if distribution is Distribution.PACK:
        return (full, apart, *far, *cost, left)
    return (full, apart, *far, *cost[0::2], -left, *cost[1::2])


def _of_part(request: GPURequest, part: GroupRequest, report: Report) -> _Part:
    """Return the first four numbers of a rank: those of the host's best group of cards."""
    cells = [
        _of_cells(request, part, cells, _far(request, part, report, number))
        for number, cells in fit.giving(report, request, part)
    ]
    return min(cells, default=_FULL)


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
