# SPDX-License-Identifier: Apache-2.0
"""GPUs that are free and yet no partition of their boards with NVSwitches.

Placement counts GPUs and knows no partitions; a host's report does, and is up to a period old.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nova import context as nova_context
from nova import objects
from nova.scheduler.host_manager import HostState
from oslo_log import log as logging

from nova_gpu.core import exception
from nova_gpu.core.exception import Reason
from nova_gpu.core.flavor.request import GPURequest
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.scheduling import fit, reasons
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.scheduler import placement, reported

LOG = logging.getLogger(__name__)

# Each costs some requests to Placement. Of more boards one has got a set free meanwhile.
_MOST_HOSTS = 10


def shortage(
    spec: objects.RequestSpec, asked: GPURequest, hosts: Sequence[HostState]
) -> Reason | None:
    """Why none of *hosts*, which Placement has enough GPUs of, has a set free of the size asked
    for; ``None`` where one may have.

    :param hosts: those that are built for the request
    """
    # Of several at once Nova would keep the claims of those before.
    several = "num_instances" in spec and spec.num_instances > 1
    if several or not hosts or len(hosts) > _MOST_HOSTS:
        return None
    reports: list[Report] = []
    for host in hosts:
        report = reported.report(host)
        if report is None or all(any(fit.giving(report, asked, part)) for part in asked.groups):
            return None
        reports.append(report)
    for part in asked.groups:
        if not any(any(fit.giving(report, asked, part)) for report in reports):
            if _is_late(asked, part, hosts, reports):
                return None
            return reasons.no_partition(asked, part, reports)
    return None


def _is_late(
    asked: GPURequest,
    part: GroupRequest,
    hosts: Collection[HostState],
    reports: Collection[Report],
) -> bool:
    """Whether Placement has more GPUs free than a host said at its last period, or nobody knows"""
    context = nova_context.get_admin_context()
    for host, report in zip(hosts, reports, strict=True):
        try:
            providers = placement.providers(context, part, host.uuid)
            offers = placement.offers(context, providers, asked.resource_class)
        except exception.PlacementFailed as error:
            LOG.warning("Which partitions are free is left to the hosts: %s", error)
            return True
        if sum(offer.free for offer in offers) > fit.free(report, asked, part):
            return True
    return False
