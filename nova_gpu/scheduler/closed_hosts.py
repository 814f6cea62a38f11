# SPDX-License-Identifier: Apache-2.0
"""The exclusion of hosts that are drained, or reserved against preemptible instances.

The compute node's provider of such a host has a trait, and a query for GPUs forbids that trait on
the root provider. So a drain takes effect with the next query, and instances without GPUs still
start there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from urllib import parse

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
    """Exclude drained and reserved hosts from *request_spec*, which requests GPUs.

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


def without(querystring: str) -> Iterator[tuple[str, str]]:
    """Yield the prefix of excluding traits, and *querystring* without the traits that have it.

    The first query lacks the traits of reserved hosts, the second also that of drained hosts. A
    query that does not differ from the one before is left out.
    """
    for prefix in (names.KEPT_UNTIL, names.DRAINED):
        wider = parse.urlencode(list(_without(querystring, prefix)))
        if wider != querystring:
            yield prefix, wider
        querystring = wider


def _without(querystring: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the query's parameters, without forbidden traits whose names begin with *prefix*."""
    for name, value in parse.parse_qsl(querystring):
        if name == "root_required":
            traits = value.split(",")
            value = ",".join(trait for trait in traits if not trait.startswith(f"!{prefix}"))
        if value:
            yield name, value
