# SPDX-License-Identifier: Apache-2.0
"""Hosts that are drained, or kept from preemptible instances.

Their compute node's provider has a trait, and no candidate for GPUs may lie below such a one. So it
is seen in the next query, and instances without GPUs are started there as ever.
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

# The clients that have asked for the trait to be there: one in a scheduler, once in its life
_made: weakref.WeakSet[report.SchedulerReportClient] = weakref.WeakSet()


def forbid(
    ctxt: nova_context.RequestContext, request_spec: objects.RequestSpec, request: FlavorRequest
) -> None:
    """Exclude such hosts from *request_spec*, which asks for GPUs.

    :raises PlacementFailed: where it cannot be put to Placement
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
    """Yield *querystring* without traits that exclude hosts, with the name that these begin with.

    First without those of hosts that are kept, then without any.
    """
    for prefix in (names.KEPT_UNTIL, names.DRAINED):
        wider = parse.urlencode(list(_without(querystring, prefix)))
        if wider != querystring:
            yield prefix, wider
        querystring = wider


def _without(querystring: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the query's parts, without traits that are forbidden and begin so."""
    for name, value in parse.parse_qsl(querystring):
        if name == "root_required":
            traits = value.split(",")
            value = ",".join(trait for trait in traits if not trait.startswith(f"!{prefix}"))
        if value:
            yield name, value
