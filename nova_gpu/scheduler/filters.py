# SPDX-License-Identifier: Apache-2.0
"""The scheduler filter, and the one place where the request filter enters Nova.

::

    [filter_scheduler]
    available_filters = nova.scheduler.filters.all_filters
    available_filters = nova_gpu.scheduler.filters.GPUFilter
    enabled_filters = ComputeFilter,...,GPUFilter
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nova import objects
from nova.scheduler import filters, request_filter, utils
from nova.scheduler.host_manager import HostState
from oslo_log import log as logging

from nova_gpu.core import exception, names, request, stats
from nova_gpu.core import machine_type as machine_types
from nova_gpu.core.request import GPURequest
from nova_gpu.scheduler import images
from nova_gpu.scheduler.request_filter import gpu_request_filter

LOG = logging.getLogger(__name__)

# Nova has no plug-in point for request filters. Available filters are imported whether they are
# enabled or not, so this is done on import, once.
if gpu_request_filter not in request_filter.ALL_REQUEST_FILTERS:
    request_filter.ALL_REQUEST_FILTERS.append(gpu_request_filter)


class GPUFilter(filters.BaseHostFilter, filters.CandidateFilterMixin):  # type: ignore[misc]
    """Passes hosts that are built for the request: by hypervisor, and by the GPUs they have.

    It judges what there is. What is free is Placement's to say, and the claim's: stats are up to a
    period old.

    A host that says nothing of its GPUs, or what cannot be read, does not pass. Candidates come
    from Placement, to which a host reports its GPUs in the same step as its stats, so this costs
    a new host at most that moment; and it keeps GPU instances off hosts that another driver runs.
    """

    # Its own host is all there is then, and of that only whether the new image fits: found out by
    # the host, it costs the guest, and Nova the allocation.
    RUN_ON_REBUILD = True

    def host_passes(self, host_state: HostState, spec: objects.RequestSpec) -> bool:
        extra_specs = spec.flavor.extra_specs if "extra_specs" in spec.flavor else {}
        if utils.request_is_rebuild(spec):
            asks = request.asks_for_gpus(extra_specs)
            reason = unfit_image(host_state, spec) if asks else None
            return reason is None or _refused(host_state, reason)
        try:
            asked = request.parse(extra_specs)
            wanted = asked.hypervisor if asked else request.parse_hypervisor(extra_specs)
        except exception.InvalidExtraSpec as e:
            return _refused(host_state, str(e))
        if wanted and not wanted.matches(host_state.hypervisor_type):
            return _refused(
                host_state, f"its hypervisor is {host_state.hypervisor_type}, not {wanted}"
            )
        if asked is None:
            return True
        if reason := unfit(asked, host_state.stats) or unfit_image(host_state, spec):
            return _refused(host_state, reason)
        return bool(
            self.filter_candidates(host_state, lambda candidate: gpus(candidate) >= asked.count)
        )


def unfit(asked: GPURequest, host_stats: Mapping[str, Any]) -> str | None:
    """Why a host with these stats is not built for what is asked, or ``None`` where it is."""
    if names.STATS not in host_stats:
        return "it reports no GPUs"
    try:
        host = stats.loads(host_stats[names.STATS])
    except exception.InvalidStats as e:
        return str(e)
    fitting = [
        group.total
        for group in host.groups
        if asked.architecture is None or asked.architecture.matches(group.architecture)
    ]
    for part in asked.groups:
        if not any(total >= part.count for total in fitting):
            return (
                f"it has no group of {part.count} GPUs"
                f"{f' of architecture {asked.architecture}' if asked.architecture else ''}, "
                f"but {host.groups}"
            )
    return None


def unfit_image(host_state: HostState, spec: objects.RequestSpec) -> str | None:
    """Why a guest of this image could not have GPUs of this host, ``None`` where it could."""
    machine_type = images.unfit_machine_type(spec)
    if machine_type is None or names.word(host_state.hypervisor_type) != names.QEMU:
        return None
    return machine_types.lacking(machine_type)


def gpus(candidate: Mapping[str, Any]) -> int:
    """How many GPUs an allocation candidate of Placement takes."""
    return sum(
        allocation["resources"].get(names.RESOURCE_CLASS, 0)
        for allocation in candidate["allocations"].values()
    )


def _refused(host_state: HostState, reason: str) -> bool:
    LOG.debug("%s does not pass: %s", host_state, reason)
    return False
