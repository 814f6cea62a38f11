# SPDX-License-Identifier: Apache-2.0
"""The flavor's words become part of Placement's query, and its empty answer gets a reason."""

from __future__ import annotations

from collections.abc import Mapping

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.scheduler import request_filter, utils
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import exception, names, query, request
from nova_gpu.core.request import GPURequest
from nova_gpu.scheduler import placement, reasons

LOG = logging.getLogger(__name__)

# Past so many groups a refusal does not count GPUs: each costs two requests to Placement.
_MOST_COUNTED = 50


@request_filter.trace_request_filter  # type: ignore[untyped-decorator]
def gpu_request_filter(
    ctxt: nova_context.RequestContext, request_spec: objects.RequestSpec
) -> bool:
    """Ask Placement for the GPUs the flavor asks for.

    The flavor in *request_spec* is replaced, never changed: others hold it too. Nothing is refused
    that Nova's own query, made a moment later, would find a candidate for.

    :raises RequestFilterFailed: with the reason, which becomes the instance's fault
    """
    flavor = request_spec.flavor
    specs = flavor.extra_specs if "extra_specs" in flavor else {}
    try:
        asked = request.parse(specs)
        if asked is None:
            request.parse_hypervisor(specs)
            return False
        _require_counted(asked, specs)
        known = placement.known_traits(ctxt) if query.needs_known(asked) else frozenset()
        spelled_out = query.extra_specs(specs, asked, known)
    except exception.InvalidExtraSpec as e:
        raise _refusal(request_spec, str(e)) from e
    except exception.PlacementFailed as e:
        LOG.warning("%s", e)
        raise _refusal(request_spec, "Placement does not say which GPUs there are") from e
    if spelled_out is None:
        unknown = reasons.unknown_name(asked, known) or "no GPU satisfies the flavor"
        raise _refusal(request_spec, unknown)

    flavor = flavor.obj_clone()
    flavor.extra_specs = spelled_out
    request_spec.flavor = flavor
    try:
        reason = _why_not(ctxt, request_spec)
    except exception.PlacementFailed as e:
        LOG.warning("Not known whether any host has the GPUs asked for, going on: %s", e)
        return True
    if reason:
        raise _refusal(request_spec, reason)
    return True


def _require_counted(asked: GPURequest, specs: Mapping[str, str]) -> None:
    if asked.counted or not CONF.gpu.require_counted_flavors:
        return
    raise exception.InvalidExtraSpec(
        names.GPUS,
        specs[names.GPUS],
        "quota does not count it ([gpu]require_counted_flavors)",
        f"resources:{names.RESOURCE_CLASS}={asked.count} beside it",
    )


def _why_not(ctxt: nova_context.RequestContext, request_spec: objects.RequestSpec) -> str | None:
    """The reason for which Placement has no candidate, or ``None`` where it has one.

    :raises PlacementFailed: where it does not answer
    """
    wanted = utils.ResourceRequest.from_request_spec(request_spec)
    if _has_candidate(ctxt, request_spec, wanted):
        return None
    if wanted.cpu_pinning_requested and not CONF.workarounds.disable_fallback_pcpu_query:
        # The scheduler asks a second time, for hosts that report no PCPU yet.
        unpinned = utils.ResourceRequest.from_request_spec(
            request_spec, enable_pinning_translate=False
        )
        if _has_candidate(ctxt, request_spec, unpinned):
            return None

    asked = request.parse(request_spec.flavor.extra_specs)
    assert asked is not None
    reason = reasons.unknown_name(asked, placement.known_traits(ctxt))
    for group in asked.groups:
        if reason:
            break
        providers = placement.providers(ctxt, group)
        if len(providers) > _MOST_COUNTED:
            reason = reasons.too_many_to_count(asked, group, len(providers))
        else:
            reason = reasons.shortage(asked, group, placement.offers(ctxt, providers))
    return reason or reasons.elsewhere(asked, wanted.get_request_group(None).resources)


def _has_candidate(
    ctxt: nova_context.RequestContext,
    request_spec: objects.RequestSpec,
    wanted: utils.ResourceRequest,
) -> bool:
    """Whether Placement has a candidate for *wanted* in the aggregates the request is bound to.

    A host the request is bound to is not looked up, so that it can only be refused by Nova.
    """
    if "requested_destination" in request_spec and request_spec.requested_destination:
        destination = request_spec.requested_destination
        unsuffixed = wanted.get_request_group(None)
        if destination.aggregates:
            unsuffixed.aggregates = [either.split(",") for either in destination.aggregates]
        if destination.forbidden_aggregates:
            unsuffixed.forbidden_aggregates |= destination.forbidden_aggregates
    return placement.has_candidate(ctxt, wanted.to_querystring())


def _refusal(request_spec: objects.RequestSpec, reason: str) -> nova_exception.RequestFilterFailed:
    LOG.info("No host for an instance with GPUs: %s", reason, instance_uuid=_uuid(request_spec))
    return nova_exception.RequestFilterFailed(reason=reason)


def _uuid(request_spec: objects.RequestSpec) -> str | None:
    return request_spec.instance_uuid if "instance_uuid" in request_spec else None
