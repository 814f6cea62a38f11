# SPDX-License-Identifier: Apache-2.0
"""Hosts that an administrator empties get no new instance with GPUs.

Their compute node's provider has a trait, and no candidate for GPUs may lie below such a one. So it
is seen in the next query, and instances without GPUs are started there as ever.
"""

from __future__ import annotations

import weakref
from urllib import parse

from nova import context as nova_context
from nova import objects
from nova.scheduler.client import report

from nova_gpu.core import names
from nova_gpu.scheduler import placement

# Whose Placement has the trait: one client in a scheduler, and one request in its life.
_made: weakref.WeakSet[report.SchedulerReportClient] = weakref.WeakSet()


def forbid(ctxt: nova_context.RequestContext, request_spec: objects.RequestSpec) -> None:
    """Has *request_spec*, which asks for GPUs, served by other hosts alone.

    :raises PlacementFailed: where it cannot be put to Placement
    """
    client = report.report_client_singleton()
    if client not in _made:
        make_trait(ctxt)
        _made.add(client)
    request_spec.root_forbidden.add(names.DRAINED)


def make_trait(ctxt: nova_context.RequestContext) -> bool:
    """Has Placement know the trait, as it refuses every query that names one it does not; whether
    it did not, because somebody had deleted it.

    :raises PlacementFailed: where Placement does not say so
    """
    return placement.make_trait(ctxt, names.DRAINED)


def including(querystring: str) -> str:
    """*querystring*, which :func:`forbid` had a say in, for the hosts that are drained as well"""
    pairs = []
    for name, value in parse.parse_qsl(querystring):
        if name == "root_required":
            traits = value.split(",")
            value = ",".join(each for each in traits if each != f"!{names.DRAINED}")
        if value:
            pairs.append((name, value))
    return parse.urlencode(pairs)
