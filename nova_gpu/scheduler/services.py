# SPDX-License-Identifier: Apache-2.0
"""The state of compute services, by which Nova's ComputeFilter refuses hosts without a reason."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

from nova import context as nova_context
from nova import objects, servicegroup

_api = functools.cache(servicegroup.API)


def are_down(ctxt: nova_context.RequestContext, nodes: Collection[str]) -> bool:
    """Return whether the compute services of all *nodes* are down.

    Return ``False`` if a cell does not answer.

    :param nodes: the UUIDs of compute nodes; those of other providers do not count
    """
    answers = nova_context.scatter_gather_all_cells(ctxt, _states, sorted(nodes)).values()
    if any(map(nova_context.is_cell_failure_sentinel, answers)):
        return False
    states = [is_up for answer in answers for is_up in answer]
    return bool(states) and not any(states)


def _states(ctxt: nova_context.RequestContext, uuids: Sequence[str]) -> list[bool]:
    """Return whether the service is up, for each of the nodes that the cell of *ctxt* has."""
    nodes = objects.ComputeNodeList.get_all_by_uuids(ctxt, uuids)
    services = (objects.Service.get_by_compute_host(ctxt, node.host) for node in nodes)
    return [bool(_api().service_is_up(service)) for service in services]
