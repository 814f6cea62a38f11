# SPDX-License-Identifier: Apache-2.0
"""The exclusion of hosts that a trait closes to new instances with GPUs."""

from __future__ import annotations

import weakref

from nova import context as nova_context
from nova import objects
from nova.scheduler.client import report
from oslo_utils import timeutils

from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.placement import closing_trait
from nova_gpu.scheduler import placement

# The report clients that have made sure that the traits exist. A scheduler has one client, so it
# does this once.
_made: weakref.WeakSet[report.SchedulerReportClient] = weakref.WeakSet()


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
