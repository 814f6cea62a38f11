# SPDX-License-Identifier: Apache-2.0
"""The reasons why no host has a free NVSwitch partition, although each has enough free GPUs.

A set is a partition: the GPUs that a guest gets together. Placement counts GPUs and does not know
sets. A host reports its free sets every period; the traits of its resource providers, which are
updated with each claim and release, are newer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from nova import context as nova_context
from nova import objects
from nova.scheduler.host_manager import HostState
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.exception import Reason
from nova_gpu.core.flavor import summary
from nova_gpu.core.flavor.request import GPURequest
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.scheduling import fit
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.scheduler import host_reports, multi_create, placement
from nova_gpu_fabric.core import set_traits

LOG = logging.getLogger(__name__)

# Each host costs several requests to Placement. Among more boards, one probably has a set that
# became free since its report.
_MOST_HOSTS = 10


def shortage(
    spec: objects.RequestSpec, request: GPURequest, hosts: Sequence[HostState]
) -> Reason | None:
    """Return why none of *hosts* has a free set of the size that *request* needs.

    Return ``None`` if one of them may have such a set.

    :param hosts: the hosts that passed the scheduler's filters; by Placement each of them has
        enough free GPUs
    """
    # Not for multi-create: after an error Nova would keep the claims of the earlier instances.
    if multi_create.has(spec) or not hosts or len(hosts) > _MOST_HOSTS:
        return None
    reports = [report for host in hosts if (report := host_reports.report(host))]
    if len(reports) < len(hosts):
        return None
    for part in request.groups:
        giving = [
            report.host.groups[number].partitions
            for report in reports
            for number, _ in fit.giving(report, request, part)
        ]
        # If more hosts than Nova tries report a free set, one of them probably still has it.
        if len(giving) > CONF.scheduler.max_attempts or not all(giving):
            continue
        if reason := _shortage(request, part, hosts, reports):
            return reason
    return None


def _shortage(
    request: GPURequest,
    part: GroupRequest,
    hosts: Collection[HostState],
    reports: Collection[Report],
) -> Reason | None:
    """Return why none of *hosts* has a free set of the size of *part*, a part of *request*.

    Query Placement, whose data are newer than *reports*. Return ``None`` if a set may be free, or
    Placement does not answer.
    """
    context = nova_context.get_admin_context()
    free = total = 0
    gives = [any(fit.giving(report, request, part)) for report in reports]
    # Begin with hosts that report a free set: mostly the first one has it, which ends the loop.
    each_host = sorted(zip(gives, hosts, reports, strict=True), key=lambda entry: not entry[0])
    for is_giving, host, report in each_host:
        try:
            offers = placement.offers_of_host(context, request, part, host.uuid)
            there = sum(offer.free for offer in offers.values())
            # The report may be old: it names a free set that may be taken now, or GPUs became free.
            is_late = is_giving or there > fit.free(report, request, part)
            if is_late and _may_have_set(context, offers, part.count, there):
                return None
        except exception.PlacementFailed as error:
            LOG.warning(
                "Cannot query Placement for free NVSwitch partitions, so a host may refuse the "
                "instance: %s",
                error,
            )
            return None
        free, total = free + there, total + sum(offer.total for offer in offers.values())
    begin = f"{part.count} {summary.gpus(request, part, part.count)} asked for"
    none = f"no free partition of {part.count}"
    return Reason(f"{begin}, {free} of {total} free, {none}", f"{begin}, {none} in any host")


def _may_have_set(
    context: nova_context.RequestContext, providers: Iterable[str], count: int, free: int
) -> bool:
    """Return whether a set of *count* GPUs may be free, by the traits of the resource providers.

    Return true, too, if the traits do not cover all free GPUs.
    """
    boards = [set_traits.board(placement.traits(context, uuid)) for uuid in providers]
    known = [board for board in boards if board]
    in_sets = sum(len(board.free) for board in known)
    if len(known) < len(boards) or in_sets < free:
        return True
    return any(board.room().get(count) for board in known)
