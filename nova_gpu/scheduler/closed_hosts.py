# SPDX-License-Identifier: Apache-2.0
"""The exclusion of hosts that are drained, or reserved against preemptible instances.

The compute node's provider of such a host has a trait, and a query for GPUs forbids that trait on
the root provider. So a drain takes effect with the next query, and instances without GPUs still
start there.
"""

from __future__ import annotations

import weakref

from nova import context as nova_context
from nova import objects
from nova.scheduler.client import report
from oslo_utils import timeutils

from nova_gpu.core import names
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.placement import reserved_hosts
from nova_gpu.scheduler import placement

# The report clients that have made sure that the trait exists. A scheduler has one client, so it
# does this once.
_made: weakref.WeakSet[report.SchedulerReportClient] = weakref.WeakSet()


def forbid(
    ctxt: nova_context.RequestContext, request_spec: objects.RequestSpec, request: FlavorRequest
) -> None:
    """Exclude drained hosts from *request_spec*, and for a preemptible instance reserved ones too.

    :param request_spec: a request for GPUs; its ``root_forbidden`` is changed
    :raises PlacementFailed: if Placement does not answer, or refuses to create the trait
    """
    client = report.report_client_singleton()
    if client not in _made:
        placement.make_trait(ctxt, names.DRAINED)
        _made.add(client)
    request_spec.root_forbidden.add(names.DRAINED)
    if request.is_preemptible:
        known = placement.known_traits(ctxt, names.KEPT_UNTIL)
        request_spec.root_forbidden.update(reserved_hosts.in_force(known, timeutils.utcnow()))
