# SPDX-License-Identifier: Apache-2.0
"""Two request filters: one translates the flavor's GPU extra specs, one explains a refusal.

The first runs before Nova's own request filters, because these read the translated flavor. The
second runs after them: it determines why Placement has no candidate, and so needs the conditions
that they add.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib import parse

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.scheduler import request_filter, utils
from nova.scheduler.client import report
from oslo_log import log as logging

from nova_gpu import notifications
from nova_gpu.conf import CONF
from nova_gpu.core import exception, names
from nova_gpu.core.exception import Reason
from nova_gpu.core.flavor import query, validation
from nova_gpu.core.flavor.placement_policy import PeerAccess
from nova_gpu.core.flavor.request import FlavorRequest, GPURequest, Request
from nova_gpu.core.scheduling import no_valid_host
from nova_gpu.quota import limits
from nova_gpu.scheduler import (
    closed_hosts,
    divisions,
    multi_create,
    obstacles,
    placement,
    requested_gpus,
)

LOG = logging.getLogger(__name__)

# What Placement says of a query that names a resource class that does not exist
_UNKNOWN_CLASS = re.compile("No such resource class ([A-Z0-9_]+)")
_NONE_FITS = Reason.of_both("no GPU satisfies the flavor", is_final=True)


@request_filter.trace_request_filter  # type: ignore[untyped-decorator]
def gpu_request_filter(
    ctxt: nova_context.RequestContext, request_spec: objects.RequestSpec
) -> bool:
    """Translate the flavor's GPU extra specs for Placement, before all other request filters.

    The flavor in *request_spec* is replaced, never changed, because other objects refer to it.
    Return whether it was replaced: false for a flavor without GPUs.

    :raises RequestFilterFailed: if the extra specs are invalid, no host could give such a GPU to a
        guest with this image, or quota refuses it; the reason becomes the instance's fault
    """
    gpu_request = requested_gpus.from_spec(request_spec)
    flavor, whole = gpu_request.flavor, None
    try:
        flavor.check()
        if not flavor.requests:
            return False
        # Instances that are there already go on without what an extension did.
        error = validation.unknown(flavor.extra_specs)
        if error and requested_gpus.instance_with_flavor(ctxt, request_spec) is None:
            raise error
        whole = flavor.whole
        if whole and whole.arrangement.insists_on_near and gpu_request.pci_devices == 0:
            raise exception.InvalidExtraSpec(
                names.NEAR,
                flavor.extra_specs[names.NEAR],
                "the instance asks for no device of Nova's own passthrough",
                f"{names.NEAR} together with pci_passthrough:alias or an SR-IOV port",
            )
        if whole and gpu_request.is_hidden and whole.arrangement.peer_access is PeerAccess.REQUIRED:
            raise exception.InvalidExtraSpec(
                names.PEER_ACCESS,
                flavor.extra_specs[names.PEER_ACCESS],
                "the GPUs' driver must see that it runs in a guest, which the "
                f"image's {names.IMAGE_HIDDEN} hides",
                "an image without it",
            )
        machine_type = gpu_request.unfit_machine_type if whole else None
        needs_known = any(map(query.needs_known, flavor.requests)) or machine_type
        known = placement.known_traits(ctxt) if needs_known else frozenset()
        spelled_out: dict[str, str] | None = dict(flavor.extra_specs)
        for request in flavor.requests:
            spelled_out = query.extra_specs(
                spelled_out or {},
                request,
                known,
                image_says=gpu_request.image_names_gpus,
                by_model=CONF.gpu.count_models,
            )
            if spelled_out is None:
                unknown = no_valid_host.unknown_name(request, known) or _NONE_FITS
                raise refusal(ctxt, request_spec, unknown, whole)
        spelled_out = divisions.named(ctxt, request_spec, spelled_out or {})
        closed_hosts.forbid(ctxt, request_spec, flavor)
        _refuse_over_limits(ctxt, request_spec, flavor)
    except exception.QuotaExceeded as e:
        raise refusal(ctxt, request_spec, Reason(str(e), e.user_text), whole) from e
    except exception.InvalidExtraSpec as e:
        raise refusal(ctxt, request_spec, Reason.of_both(str(e), is_final=True)) from e
    except exception.PlacementFailed as e:
        LOG.warning("Refusing a request for GPUs, because its query cannot be made: %s", e)
        unread = Reason.of_both("Placement does not say which GPUs there are")
        raise refusal(ctxt, request_spec, unread, whole) from e
    if (
        whole
        and machine_type
        and (unfit := no_valid_host.unfit_machine_type(whole, machine_type, known))
    ):
        raise refusal(ctxt, request_spec, unfit, whole)

    changed = request_spec.flavor.obj_clone()
    changed.extra_specs = spelled_out
    request_spec.flavor = changed
    return True


@request_filter.trace_request_filter  # type: ignore[untyped-decorator]
def gpu_candidates_filter(
    ctxt: nova_context.RequestContext, request_spec: objects.RequestSpec
) -> bool:
    """Refuse a request for which Placement has no candidate, after all other request filters.

    Nova's own query, a moment later, would find none either, but Nova gives no reason. Return
    whether the flavor requests GPUs.

    :raises RequestFilterFailed: with the reason, which becomes the instance's fault
    """
    gpu_request = requested_gpus.from_spec(request_spec)
    flavor, reason = gpu_request.flavor, None
    try:
        if flavor.requests:
            reason = _why_not(ctxt, request_spec, flavor.requests)
        elif gpu_request.image_names_gpus:
            reason = _by_image(ctxt, request_spec)
    except exception.PlacementFailed as e:
        LOG.warning("Cannot tell whether a host has the requested GPUs, leaving it to Nova: %s", e)
        unknown = _UNKNOWN_CLASS.search(str(e))
        reason = unknown and Reason.of_both(f"no host has {unknown[1]}", is_final=True)
    if reason:
        raise refusal(ctxt, request_spec, reason, flavor.whole)
    return bool(flavor.requests)


def _refuse_over_limits(
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


def _why_not(
    ctxt: nova_context.RequestContext,
    request_spec: objects.RequestSpec,
    requests: Sequence[Request],
) -> Reason | None:
    """Return why Placement cannot serve all instances of the request, ``None`` if it can."""
    in_tree = _permitted_node(ctxt, request_spec)
    ignored = frozenset(
        uuid
        for host in (request_spec.ignore_hosts or () if "ignore_hosts" in request_spec else ())
        if (uuid := _node(ctxt, host))
    )
    wanted, unpinned = _wanted(request_spec, in_tree)
    querystring = wanted.to_querystring()
    nodes = placement.nodes(ctxt, querystring, ignored)
    if nodes is None or nodes:
        # Nova starts instances on a forced host whatever its state is.
        if nodes and not _is_forced(request_spec) and closed_hosts.are_down(ctxt, nodes):
            return no_valid_host.closed(requests[0], no_valid_host.DOWN, bound=in_tree is not None)
        instances = multi_create.to_create(ctxt, request_spec)
        if instances < 2:
            return None
        most = placement.room(ctxt, querystring, requests[0].resource_class)
        return no_valid_host.too_few(requests[0], instances, most)
    if unpinned and placement.has_candidate(ctxt, unpinned.to_querystring(), ignored):
        return None

    def is_served(pairs: obstacles.Pairs) -> bool:
        return placement.has_candidate(ctxt, parse.urlencode(pairs), ignored)

    bound, pairs = in_tree is not None, obstacles.pairs(querystring)
    if reason := obstacles.closing(pairs, requests[0], is_served, bound=bound):
        return reason
    resources = wanted.get_request_group(None).resources
    if is_served(obstacles.gpus_only(pairs)):
        return no_valid_host.elsewhere(requests[0], resources, obstacles.other(pairs, is_served))
    known = placement.known_traits(ctxt)
    roots = placement.members(ctxt, querystring)
    scope = placement.PermittedHosts(in_tree, roots, ignored)
    supplies = [placement.supplies(ctxt, request, scope) for request in requests]
    missing = no_valid_host.missing(
        requests, supplies, known, bound=bound, where=_where(request_spec, scope)
    )
    if missing or sum(len(request.groups) for request in requests) > 1:
        return missing or no_valid_host.not_together(requests)
    return no_valid_host.elsewhere(requests[0], resources, None)


def _by_image(
    ctxt: nova_context.RequestContext, request_spec: objects.RequestSpec
) -> Reason | None:
    """Return why a flavor without GPUs does not fit an image that requires one, ``None`` if so."""
    wanted, _ = _wanted(request_spec, _permitted_node(ctxt, request_spec))
    own = wanted.get_request_group(None)
    traits = {*filter(names.is_own_trait, own.required_traits)}
    # Nova's own vGPUs may have the trait.
    if not traits or own.resources.keys() & set(names.RESOURCE_CLASSES):
        return None
    has_room = placement.has_candidate(ctxt, wanted.to_querystring())
    return None if has_room else no_valid_host.by_image(traits)


def _where(spec: objects.RequestSpec, scope: placement.PermittedHosts) -> str:
    """Return the text that limits a count to the hosts that the request permits, or nothing."""
    zone = spec.availability_zone if "availability_zone" in spec else None
    among = f" in zone {zone}" if zone else " among the hosts that the project may use"
    return among * (scope.roots is not None) + " besides the host it is on" * bool(scope.ignored)


def _wanted(
    request_spec: objects.RequestSpec, in_tree: str | None
) -> tuple[utils.ResourceRequest, utils.ResourceRequest | None]:
    """Return the query that Nova will send to Placement, and its fallback query.

    Nova sends the fallback if the first query has no candidate, for hosts that report no PCPU yet
    (``nova.scheduler.utils.resources_from_request_spec``). It is ``None`` for a request without
    dedicated CPUs, or if an option disables it.
    """
    wanted = _resource_request(request_spec, in_tree)
    if not wanted.cpu_pinning_requested or CONF.workarounds.disable_fallback_pcpu_query:
        return wanted, None
    return wanted, _resource_request(request_spec, in_tree, enable_pinning_translate=False)


def _resource_request(
    request_spec: objects.RequestSpec, in_tree: str | None, **kwargs: bool
) -> utils.ResourceRequest:
    resource_request = utils.ResourceRequest.from_request_spec(request_spec, **kwargs)
    unsuffixed = resource_request.get_request_group(None)
    unsuffixed.in_tree = in_tree
    if destination := _destination(request_spec):
        if destination.aggregates:
            unsuffixed.aggregates = [either.split(",") for either in destination.aggregates]
        if destination.forbidden_aggregates:
            unsuffixed.forbidden_aggregates |= destination.forbidden_aggregates
    return resource_request


def _permitted_node(ctxt: nova_context.RequestContext, spec: objects.RequestSpec) -> str | None:
    """Return the UUID of the only compute node that the request permits, ``None`` for any."""
    destination = _destination(spec)
    for field, forced in (("node", "force_nodes"), ("host", "force_hosts")):
        named = None
        if destination and field in destination:
            named = getattr(destination, field)
        if not named and forced in spec and getattr(spec, forced):
            named = getattr(spec, forced)[0]
        if named:
            return _node(ctxt, str(named))
    return None


def _is_forced(spec: objects.RequestSpec) -> bool:
    return any(field in spec and getattr(spec, field) for field in ("force_hosts", "force_nodes"))


def _node(ctxt: nova_context.RequestContext, name: str) -> str | None:
    """Return the UUID of the compute node *name*, or of the compute host *name*.

    Most often both have the same name.
    """
    if uuid := placement.node(ctxt, name):
        return uuid
    try:
        mapping = objects.HostMapping.get_by_host(ctxt, name)
        with nova_context.target_cell(ctxt, mapping.cell_mapping) as in_cell:
            (first, *_) = objects.ComputeNodeList.get_all_by_host(in_cell, name)
    except (nova_exception.HostMappingNotFound, nova_exception.ComputeHostNotFound):
        return None
    return str(first.uuid)


def _destination(request_spec: objects.RequestSpec) -> objects.Destination | None:
    return request_spec.requested_destination if "requested_destination" in request_spec else None


def refusal(
    ctxt: nova_context.RequestContext,
    request_spec: objects.RequestSpec,
    reason: Reason,
    request: GPURequest | None = None,
) -> nova_exception.RequestFilterFailed:
    """Log the refusal, send its notification, and return the error for the caller to raise.

    :param request: the flavor's request for whole cards, ``None`` without one or if it is invalid
    """
    uuid, project_id = (
        getattr(request_spec, field) if field in request_spec else None
        for field in ("instance_uuid", "project_id")
    )
    LOG.info("No host for an instance with GPUs: %s", reason.log_text, instance_uuid=uuid)
    event = notifications.Event(
        notifications.EventType.NO_VALID_HOST,
        count=request.count if request else None,
        project_id=project_id,
        instance_uuid=uuid,
        architecture=str(request.architecture) if request and request.architecture else None,
        reason=reason.log_text,
    )
    notifications.emit(event, ctxt)
    return nova_exception.RequestFilterFailed(reason=reason.fault)
