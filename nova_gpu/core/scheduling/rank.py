# SPDX-License-Identifier: Apache-2.0
"""Which of several hosts is the best for a request, by what they have free."""

from __future__ import annotations

from nova_gpu.core.flavor.arrangement import Distribution
from nova_gpu.core.flavor.request import GPURequest
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.scheduling import fit
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.core.topology import choose, topology
from nova_gpu.core.topology.choose import Cost
from nova_gpu.core.topology.topology import Cells

# Hosts are compared by these numbers from the first on; less is better.
Rank = tuple[int, ...]

_FULL: tuple[int, int, Cost] = (1, 0, (0, 0) * len(topology.LEVELS))


def rank(asked: GPURequest, report: Report, distribution: Distribution) -> Rank:
    """How good the host of *report* is for *asked*.

    1. Whether its free GPUs are too few, in no set in which they are given, or it is not known
       which are free.
    2. How many islands too many the set touches that its pool would give, where the flavor says
       what its GPUs are to share, required or preferred.
    3. The cost of that set (see :mod:`nova_gpu.core.topology.choose`).
    4. How many GPUs the host has free then.

    So it is to pack. To spread, the fourth comes before what of the third speaks of islands that
    are broken.
    """
    parts = [_of_part(asked, part, report) for part in asked.groups]
    full, apart = (sum(numbers) for numbers in list(zip(*parts, strict=True))[:2])
    cost = tuple(map(sum, zip(*(cost for _, _, cost in parts), strict=True)))
    # Of hosts that are full none is better than another.
    left = 0 if full else report.free_gpus - asked.count
    if distribution is Distribution.PACK:
        return (full, apart, *cost, left)
    return (full, apart, *cost[0::2], -left, *cost[1::2])


def _of_part(asked: GPURequest, part: GroupRequest, report: Report) -> tuple[int, int, Cost]:
    """The first three, of the best group for one request group"""
    found = [
        _of_cells(asked, part, cells)
        for group, cells, sets in report.each_group()
        if fit.serves(group, asked, part) and (not group.partitions or dict(sets).get(part.count))
    ]
    return min(found, default=_FULL)


def _of_cells(asked: GPURequest, part: GroupRequest, cells: Cells) -> tuple[int, int, Cost]:
    costs = choose.costs(cells)
    if len(costs) <= part.count:
        return _FULL
    cost = costs[part.count]
    level = choose.LEVELS.get(asked.arrangement.topology)
    return 0, 0 if level is None else cost[2 * level] - 1, cost
