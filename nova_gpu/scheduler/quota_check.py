# SPDX-License-Identifier: Apache-2.0
"""Unified limits for flavors whose GPUs Nova's API does not count: those with ``gpus`` alone."""

from __future__ import annotations

from collections.abc import Mapping

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.scheduler.client import report

from nova_gpu.conf import CONF
from nova_gpu.core import exception, names
from nova_gpu.core.flavor import request
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.quota import limits
from nova_gpu.scheduler import multi_create


def refuse_over(
    ctxt: nova_context.RequestContext, spec: objects.RequestSpec, flavor: FlavorRequest
) -> None:
    """Refuse a request whose GPUs would exceed its project's unified limits.

    GPUs that the flavor has as ``resources:`` are left to Nova's API. A move is charged only with
    what the new flavor has more than the old one, because Placement counts the rest already.

    :raises QuotaExceeded: if a limit would be exceeded, or if the limits cannot be read
    """
    uncounted = flavor.uncounted(by_model=CONF.gpu.count_models)
    if not (uncounted and limits.is_unified()):
        return
    instances, held = multi_create.to_create(ctxt, spec), _held(ctxt, spec)
    deltas = {
        name: instances * count - held.get(name, 0)
        for name, count in uncounted.items()
        if instances * count > held.get(name, 0)
    }
    client = report.report_client_singleton()
    limits.refuse_over(client, spec.project_id, deltas, "nova-scheduler")


def _held(ctxt: nova_context.RequestContext, spec: objects.RequestSpec) -> Mapping[str, int]:
    """Return the GPUs that Placement counts for the instance, on its host or for its move.

    There are none for a new instance, one that is unshelved, and one that released its GPUs.
    """
    try:
        mapping = objects.InstanceMapping.get_by_instance_uuid(ctxt, spec.instance_uuid)
        if mapping.cell_mapping is None:
            return {}
        with nova_context.target_cell(ctxt, mapping.cell_mapping) as in_cell:
            instance = objects.Instance.get_by_uuid(
                in_cell, spec.instance_uuid, expected_attrs=["flavor", "system_metadata"]
            )
    except (nova_exception.InstanceMappingNotFound, nova_exception.InstanceNotFound):
        return {}
    if instance.host is None or names.RELEASED in instance.system_metadata:
        return {}
    try:
        return request.of(instance.flavor.extra_specs).counts(by_model=CONF.gpu.count_models)
    except exception.InvalidExtraSpec:
        return {}
