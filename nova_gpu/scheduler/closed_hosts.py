# SPDX-License-Identifier: Apache-2.0
"""Hosts that take no new instances with GPUs: closed by a trait, or with a service that is down.

Nova's ComputeFilter refuses the latter without a reason.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection, Sequence

from nova import context as nova_context
from nova import objects, servicegroup
from nova.scheduler.client import report
from oslo_utils import timeutils

from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.placement import closing_trait
from nova_gpu.scheduler import placement

# The report clients that have made sure that the traits exist. A scheduler has one client, so it
# does this once.
_made: weakref.WeakSet[report.SchedulerReportClient] = weakref.WeakSet()
_service_groups = functools.cache(servicegroup.API)


def forbid(
    ctxt: nova_context.RequestContext, request_spec: objects.RequestSpec, request: FlavorRequest
) -> None:
    """Exclude the hosts that are closed to the instances of a flavor from *request_spec*.

    :param request_spec: a request for GPUs; its ``root_forbidden`` is changed
    :raises PlacementFailed: if Placement does not answer, or refuses to create the trait
    """
    client = report.report_client_singleton()
    if client not in _made:
        placement.make_closing_traits(ctxt)
        _made.add(client)
    for trait in closing_trait.declared():
        if not trait.closes(request.extra_specs):
            continue
        known = placement.known_traits(ctxt, trait.name) if trait.is_in_force else {trait.name}
        request_spec.root_forbidden.update(trait.in_force(known, timeutils.utcnow()))


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
    return [bool(_service_groups().service_is_up(service)) for service in services]
