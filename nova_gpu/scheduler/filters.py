# SPDX-License-Identifier: Apache-2.0
"""The scheduler filter; importing this module also registers the request filters with Nova.

::

    [filter_scheduler]
    available_filters = nova.scheduler.filters.all_filters
    available_filters = nova_gpu.scheduler.filters.GPUFilter
    enabled_filters = ComputeFilter,...,GPUFilter
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.scheduler import filters, request_filter, utils
from nova.scheduler.host_manager import HostState
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.conf.scheduling import NEVER
from nova_gpu.core import exception, extensions, names
from nova_gpu.core.flavor.condition import Condition
from nova_gpu.core.flavor.request import FlavorRequest, GPURequest
from nova_gpu.core.guest import machine_types
from nova_gpu.core.printable import MOST_OF_A_LINE, printable
from nova_gpu.core.scheduling import fit
from nova_gpu.core.scheduling.stats import HostStats, Report
from nova_gpu.scheduler import (
    candidate_order,
    cells,
    host_reports,
    multi_create,
    requested_gpus,
)
from nova_gpu.scheduler.request_filter import gpu_candidates_filter, gpu_request_filter, refusal
from nova_gpu.scheduler.requested_gpus import Requested

LOG = logging.getLogger(__name__)

_SHORTAGES = extensions.load("nova_gpu.shortages")

# Nova has no plug-in point for request filters. It imports available filters even if they are not
# enabled, so the import of this module registers the request filters, once.
if gpu_request_filter not in request_filter.ALL_REQUEST_FILTERS:
    request_filter.ALL_REQUEST_FILTERS.insert(0, gpu_request_filter)
    request_filter.ALL_REQUEST_FILTERS.append(gpu_candidates_filter)


class GPUFilter(filters.BaseHostFilter, filters.CandidateFilterMixin):  # type: ignore[misc]
    """The filter that passes hosts whose hypervisor and GPUs suit the request.

    It compares the request with all GPUs of a host, free or not. Placement and the claim decide
    which are free, because a host's report is up to a period old. A host without a valid report
    does not pass, which keeps GPU instances off hosts with another virt driver.
    """

    # In a rebuild the instance's own host is the only candidate, and only the new image is checked.
    # If the host refused the image later, the guest would be lost already.
    RUN_ON_REBUILD = True

    def filter_all(
        self, filter_obj_list: Iterable[HostState], spec_obj: objects.RequestSpec
    ) -> Iterator[HostState]:
        """Return an iterator of the hosts that pass.

        For a request for devices they are :func:`in_order`.

        :raises NoValidHost: if GPUs are free only on boards that give exact sets, and not as a set
            of the requested size; otherwise the claims would fail on one host after another,
            without a reason for the user. If no host can put the guest's cells and its GPUs on the
            same NUMA nodes. For an instance without GPUs: if all hosts keep what they have left for
            their GPUs
        """
        request = requested_gpus.from_spec(spec_obj)
        there = list(filter_obj_list)
        passing = filter(self._judge(spec_obj, request), there)
        if request.flavor.is_cpu_only:
            able = list(passing)
            if not able:
                _tell_that_gpus_need_it(spec_obj, request.flavor, there)
            return iter(able)
        hosts = in_order(passing, spec_obj)
        if hosts and not utils.request_is_rebuild(spec_obj) and (whole := request.flavor.whole):
            hosts = _near_their_cells(spec_obj, whole, hosts)
            _require_suitable(spec_obj, whole, hosts)
            # Nova calls no weigher for a single host.
            if len(hosts) <= candidate_order.TRIED:
                candidate_order.sort(hosts, whole)
        return iter(hosts)

    def host_passes(self, host_state: HostState, spec: objects.RequestSpec) -> bool:
        return self._judge(spec, requested_gpus.from_spec(spec))(host_state)

    def _judge(self, spec: objects.RequestSpec, request: Requested) -> Callable[[HostState], bool]:
        """Return a predicate; what does not depend on the host is evaluated once for all hosts."""
        flavor = request.flavor
        if utils.request_is_rebuild(spec):
            machine_type = request.unfit_machine_type if flavor.asks_for_gpus else None
            return _judge_hosts(None, None, machine_type)
        try:
            requests, hypervisor = flavor.requests, flavor.hypervisor
        except exception.InvalidExtraSpec as e:
            text = str(e)
            return lambda host_state: _passes(host_state, text)
        if not requests:
            passes, judged = _judge_hosts(None, hypervisor, None), _without_gpus(spec, flavor)
            return lambda host_state: passes(host_state) and _passes(host_state, judged(host_state))
        machine_type = request.unfit_machine_type if flavor.whole else None
        passes = _judge_hosts(flavor.whole, hypervisor, machine_type)
        # Placement's candidates have the amount of every request that quota counts; check the
        # others.
        short = [
            (request.resource_class, request.count) for request in requests if not request.counted
        ]
        if not short:
            return passes
        return lambda host_state: (
            passes(host_state)
            and bool(
                self.filter_candidates(
                    host_state,
                    lambda candidate: all(
                        amount(candidate, resource) >= n for resource, n in short
                    ),
                )
            )
        )


def _near_their_cells(
    spec: objects.RequestSpec, request: GPURequest, hosts: list[HostState]
) -> list[HostState]:
    """Return those of *hosts* that can put the guest's cells and its GPUs on the same NUMA nodes.

    Refuse the request if none of them can, or none has enough GPUs free there.
    """
    wanted = cells.wanted(spec, request)
    if wanted is None:
        return hosts
    able = [host for host in hosts if _passes(host, wanted.why_not(host))]
    # Not for multi-create: after an error Nova would keep the claims of the earlier instances.
    if multi_create.has(spec):
        return able
    if reason := wanted.shortage(able) if able else wanted.impossible(hosts):
        refused = refusal(nova_context.get_admin_context(), spec, reason, request)
        raise nova_exception.NoValidHost(reason=refused.format_message())
    return able


def _require_suitable(
    spec: objects.RequestSpec, request: GPURequest, hosts: Sequence[HostState]
) -> None:
    """Refuse a request if an extension knows that no free GPUs of *hosts* suit it."""
    for shortage in _SHORTAGES:
        if reason := shortage(spec, request, hosts):
            refused = refusal(nova_context.get_admin_context(), spec, reason, request)
            raise nova_exception.NoValidHost(reason=refused.format_message())


def _judge_hosts(
    request: GPURequest | None, hypervisor: Condition | None, machine_type: str | None
) -> Callable[[HostState], bool]:
    """Return a predicate: whether a host passes. Hosts with the same report share a verdict.

    :param machine_type: the image's machine type if guests with it cannot have whole cards, else
        ``None``
    """
    # By hypervisor type and id() of the parsed report, which the value refers to, so that its id()
    # stays valid.
    verdicts: dict[tuple[str | None, int], tuple[HostStats | None, str | None]] = {}

    def why_not(hypervisor_type: str | None, host: HostStats | None) -> str | None:
        if hypervisor and not hypervisor.matches(hypervisor_type):
            return f"its hypervisor is {hypervisor_type}, not {hypervisor}"
        if request and (reason := unfit(request, host)):
            return reason
        # A container has no use for a machine type.
        if machine_type and names.word(hypervisor_type) == names.QEMU:
            return machine_types.no_pci_express(machine_type)
        return None

    def passes(host_state: HostState) -> bool:
        try:
            host = host_reports.host_stats(host_state) if request else None
        except exception.InvalidStats as e:
            return _passes(host_state, str(e))
        key = (host_state.hypervisor_type, id(host))
        verdict = verdicts.get(key)
        if verdict is None:
            verdict = verdicts[key] = (host, why_not(host_state.hypervisor_type, host))
        return _passes(host_state, verdict[1])

    return passes


def _without_gpus(
    spec: objects.RequestSpec, request: FlavorRequest
) -> Callable[[HostState], str | None]:
    """Return a function that returns why a host must not get an instance without devices."""
    if not request.is_cpu_only:
        return lambda host_state: None
    insists = CONF.gpu.cpu_only_instances == NEVER

    def why_not(host_state: HostState) -> str | None:
        try:
            report = host_reports.report(host_state)
        except exception.InvalidStats as e:
            return str(e) if insists else None
        if report is None or not report.cards:
            return None
        if insists:
            return "it has GPUs, and [gpu]cpu_only_instances is never"
        return _stranded(host_state, spec, report) if report.reserved_per_free_gpu else None

    return why_not


def _tell_that_gpus_need_it(
    spec: objects.RequestSpec, request: FlavorRequest, hosts: Sequence[HostState]
) -> None:
    """Refuse an instance without GPUs with a reason, if each of *hosts* keeps it off its GPUs."""
    # Not for multi-create: after an error Nova would keep the claims of the earlier instances.
    if multi_create.has(spec) or utils.request_is_rebuild(spec):
        return
    why_not = _without_gpus(spec, request)
    if hosts and all(why_not(host) for host in hosts):
        raise nova_exception.NoValidHost(
            reason="the hosts with room keep it for instances with GPUs"
        )


def _stranded(host_state: HostState, spec: objects.RequestSpec, report: Report) -> str | None:
    vcpus, memory_mib = host_reports.left(host_state, spec)
    return fit.stranded(
        vcpus.left, memory_mib.left, report.free_cards, report.reserved_per_free_gpu
    )


def in_order(hosts: Iterable[HostState], spec: objects.RequestSpec) -> list[HostState]:
    """Return *hosts* in the order of their UUIDs, which is the same in each scheduler process.

    Nova takes the first host among those with the best weight, so several processes break up the
    same host. A multi-create request begins with any of the hosts, because it fills them.

    For a further instance of a multi-create request, *hosts* are in the order in which Nova tried
    them for the previous instance. Placement has refused the hosts before the one that the previous
    instance got, so these go to the end, and the rest keeps its order.
    """
    if not multi_create.has(spec):
        return sorted(hosts, key=operator.attrgetter("uuid"))
    passing = list(hosts)
    if (last := multi_create.last_host(passing)) is not None:
        at = passing.index(last)
        multi_create.note_refused(passing[:at])
        return passing[at:] + passing[:at]
    if "instance_uuid" in spec and spec.instance_uuid:
        draw = random.Random(spec.instance_uuid).random
        # Shuffle in half of the time that shuffle() takes
        passing.sort(key=lambda host: draw())
    return passing


def unfit(request: GPURequest, host: HostStats | None) -> str | None:
    """Return why a host with this report (or none) does not suit; ``None`` if it does."""
    if host is None:
        return "it reports no GPUs"
    for part in request.groups:
        if not any(fit.serves(group, request, part) for group in host.groups):
            stated = [
                f"{key} {condition}"
                for key, condition, prefix in request.conditions(part)
                if prefix != names.TRAIT_HYPERVISOR
            ]
            wanted = f"{part.count} GPUs{' with ' if stated else ''}{', '.join(stated)}"
            there = ", ".join(map(str, host.groups)) or "none"
            return f"it has no group of {wanted}, but {there}"
    return None


def amount(candidate: Mapping[str, Any], resource_class: str) -> int:
    """Return the amount of *resource_class* in an allocation candidate of Placement."""
    return sum(
        allocation["resources"].get(resource_class, 0)
        for allocation in candidate["allocations"].values()
    )


def _passes(host_state: HostState, reason: str | None) -> bool:
    if reason is None:
        return True
    # A reason may have a property of the tenant's image in it.
    LOG.debug("%s does not pass: %s", host_state, printable(reason, MOST_OF_A_LINE))
    return False
