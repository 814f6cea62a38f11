# SPDX-License-Identifier: Apache-2.0
"""The order of a host's allocation candidates, of which Nova claims the first.

A host with several groups of GPUs has a candidate for each group that serves the request. The
weigher ranks the host by its best group, so that group's candidate must come first.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from nova import context as nova_context
from nova.scheduler.host_manager import HostState
from oslo_log import log as logging

from nova_gpu.core import exception, names
from nova_gpu.core.flavor.request import GPURequest
from nova_gpu.core.model import GroupKey
from nova_gpu.core.scheduling import rank
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.scheduler import host_reports, placement, recent_choices
from nova_gpu.scheduler.recent_choices import Taken

LOG = logging.getLogger(__name__)


# The number of hosts that are prepared for a claim: the default of [scheduler]max_attempts
TRIED = 3

# The groups of the providers on each compute node, by the UUID of the node's provider. A lost
# update costs one more request to Placement.
_groups: dict[str, Mapping[str, GroupKey]] = {}


def sort(
    hosts: Iterable[HostState], request: GPURequest, taken: Taken = recent_choices.NOTHING
) -> None:
    """Sort the allocation candidates of each host, the one with the best GPUs first.

    The order remains if there is nothing to choose, or if the host or Placement does not say which
    GPUs the providers have.

    :param taken: the recent choices, which the hosts' reports do not show
    """
    for host in hosts:
        if len(host.allocation_candidates or ()) < 2:
            continue
        try:
            report = host_reports.report(host)
            if report is None or report.free is None or len(report.host.groups) < 2:
                continue
            indexes = _indexes(host, report)
        except exception.InvalidStats:
            continue
        except exception.PlacementFailed as e:
            LOG.warning("The GPUs of %s are taken in Placement's order: %s", host.host, e)
            continue
        now = functools.reduce(rank.left, taken.of(host, report), report)
        host.allocation_candidates.sort(
            key=lambda candidate, now=now, indexes=indexes: rank.of_groups(
                request, now, _amounts(candidate, indexes)
            )
        )


def _indexes(host: HostState, report: Report) -> Mapping[str, int]:
    """Return for each provider of the host's GPUs the index of its group in *report*."""
    used = {
        uuid
        for candidate in host.allocation_candidates
        for uuid, allocation in candidate["allocations"].items()
        if names.RESOURCE_CLASS in allocation["resources"]
    }
    groups = _groups.get(host.uuid)
    if groups is None or not used <= groups.keys():
        groups = placement.groups(nova_context.get_admin_context(), host.uuid, host.nodename)
        _groups[host.uuid] = groups
    index = {(group.product, group.mode): n for n, group in enumerate(report.host.groups)}
    return {
        uuid: index[product]
        for uuid, key in groups.items()
        if (product := (key.product, str(key.mode))) in index
    }


def _amounts(candidate: Mapping[str, Any], indexes: Mapping[str, int]) -> Mapping[int, int]:
    amounts: Counter[int] = Counter()
    for uuid, allocation in candidate["allocations"].items():
        if count := allocation["resources"].get(names.RESOURCE_CLASS):
            # The index of an unknown group is that of no group in the report.
            amounts[indexes.get(uuid, -1)] += count
    return amounts
