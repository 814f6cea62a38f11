# SPDX-License-Identifier: Apache-2.0
"""Unified limits for flavors whose GPUs Nova's API does not count: those with ``gpus`` alone."""

from __future__ import annotations

from nova import context as nova_context
from nova import objects
from nova.scheduler.client import report

from nova_gpu.conf import CONF
from nova_gpu.core import names
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.quota import limits
from nova_gpu.scheduler import multi_create, requested_gpus


def refuse_over(
    ctxt: nova_context.RequestContext, spec: objects.RequestSpec, flavor: FlavorRequest
) -> None:
    """Refuse a request whose GPUs would exceed its project's unified limits.

    GPUs that the flavor has as ``resources:`` are left to Nova's API. As there, a resize is charged
    with all that the new flavor has, because Placement counts both until it is confirmed. A
    migration or an evacuation, which gives the instance no more than it has, is not charged.

    :raises QuotaExceeded: if a limit would be exceeded, or if the limits cannot be read
    """
    uncounted = flavor.uncounted(by_model=CONF.gpu.count_models)
    if not (uncounted and limits.is_unified()) or _keeps_gpus(ctxt, spec):
        return
    instances = multi_create.to_create(ctxt, spec)
    deltas = {name: instances * count for name, count in uncounted.items()}
    client = report.report_client_singleton()
    limits.refuse_over(client, spec.project_id, deltas, "nova-scheduler", instances=instances)


def _keeps_gpus(ctxt: nova_context.RequestContext, spec: objects.RequestSpec) -> bool:
    """Return whether the request moves an instance that has GPUs, with the flavor that it has.

    A new instance has none, nor has one that is unshelved or released its GPUs at a stop.
    """
    instance = requested_gpus.instance_with_flavor(ctxt, spec)
    return (
        instance is not None
        and instance.host is not None
        and any(names.is_gpu_class(item.resource_class) for item in instance.resources or ())
    )
