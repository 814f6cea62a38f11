# SPDX-License-Identifier: Apache-2.0
"""Reasons why no host has a free NVSwitch partition, though it has enough free GPUs.

Placement counts GPUs and does not know partitions. A host's report names them, but may be a period
old; the traits of the host's providers are as new as the last claim or release.
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
from nova_gpu.core.flavor.request import GPURequest
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.scheduling import fit, reasons
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.core.sets import set_traits
from nova_gpu.scheduler import host_reports, multi_create, placement

LOG = logging.getLogger(__name__)

# Each costs some requests to Placement. Of more boards one has got a set free meanwhile.
_MOST_HOSTS = 10


def shortage(
    spec: objects.RequestSpec, request: GPURequest, hosts: Sequence[HostState]
) -> Reason | None:
    """Return why none of *hosts* has a free set of the size asked for; ``None`` where one may have.

    Placement has enough GPUs of each.

    :param hosts: those that are built for the request
    """
    # Of several at once Nova would keep the claims of those before.
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
        # Of more hosts than Nova tries one has a set still.
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
    """Return the reason where no set is free, by Placement's count.

    ``None`` where one is or may be.
    """
    context = nova_context.get_admin_context()
    free = total = 0
    gives = [any(fit.giving(report, request, part)) for report in reports]
    # Those that call a set free come first: mostly one has it, and no more are asked.
    each_host = sorted(zip(gives, hosts, reports, strict=True), key=lambda entry: not entry[0])
    for is_giving, host, report in each_host:
        try:
            offers = {
                uuid: offer
                for uuid in placement.providers(context, part, host.uuid)
                for offer in placement.offers(context, [uuid], request.resource_class)
            }
            there = sum(offer.free for offer in offers.values())
            # Somebody has given GPUs back since the report, or may have taken what it calls free.
            is_late = is_giving or there > fit.free(report, request, part)
            if is_late and _may_have_set(context, offers, part.count, there):
                return None
        except exception.PlacementFailed as error:
            LOG.warning("The hosts decide which partitions are free: %s", error)
            return None
        free, total = free + there, total + sum(offer.total for offer in offers.values())
    return reasons.without_partition(request, part, free, total)


def _may_have_set(
    context: nova_context.RequestContext, providers: Iterable[str], count: int, free: int
) -> bool:
    """Return whether a set of *count* may be free by the providers' traits.

    It may be where these do not say it of all that are *free*.
    """
    boards = [set_traits.board(placement.traits(context, uuid)) for uuid in providers]
    known = [board for board in boards if board]
    sets = sum(len(board.free) for board in known)
    return (
        len(known) < len(boards) or sets < free or any(board.room().get(count) for board in known)
    )
