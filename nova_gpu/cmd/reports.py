# SPDX-License-Identifier: Apache-2.0
"""What the upgrade check finds in the hosts' reports of their GPUs, next to the flavors.

It reads Nova's databases, and so runs on controllers only.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.virt import hardware

from nova_gpu.cmd import checks
from nova_gpu.conf import CONF
from nova_gpu.core import exception, names, release
from nova_gpu.core.flavor import request, request_group
from nova_gpu.core.flavor.request import FlavorRequest, GPURequest, Request, VGPURequest
from nova_gpu.core.scheduling import fit, stats
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.core.topology import affinity


def other_releases() -> list[str]:
    """Return a line for each host whose report of its GPUs is of another release than this one.

    nova-scheduler finds fewer facts in a report of an older version of the format, and cannot read
    a newer one.
    """
    return sorted(
        f"{node.hypervisor_hostname}: {reason}"
        for node, text in _texts()
        if (reason := _differs(text))
    )


def crowded_flavors() -> list[str]:
    """Return a line for each flavor with more allocation candidates than Nova asks Placement for.

    Each group of GPUs, or type of vGPUs, that serves a request group makes one on each host; those
    of several request groups multiply.
    """
    reports = [report for _, report in _reports()]
    lines = []
    for flavor, requests in _flavors():
        numbers = [_candidates(requests, report) for report in reports]
        if (total := sum(numbers)) > CONF.scheduler.max_placement_results:
            lines.append(f"{flavor.name}: {total} on {sum(map(bool, numbers))} hosts")
    return lines


def flavors_on_too_few_nodes() -> list[str]:
    """Return a line for each flavor that asks for more GPUs than its NUMA cells can be near.

    They are compared with the most GPUs that a host reports on one NUMA node. Where no two are on
    one, the nodes may be unknown, and the policy ``legacy`` allows all GPUs of such a host.
    """
    groups = [group for _, report in _reports() for group in report.host.groups]
    most = max((g.islands.numa if g.islands.numa > 1 else g.total for g in groups), default=0)
    image, lines = objects.ImageMeta.from_dict({}), []
    for flavor, requests in _flavors() if most else ():
        whole = next((item for item in requests if isinstance(item, GPURequest)), None)
        with contextlib.suppress(nova_exception.NovaException):  # Nova's API refuses it
            topology = hardware.numa_get_constraints(flavor, image)
            stated = hardware.get_pci_numa_policy_constraint(flavor, image)
            policy = affinity.policy(stated, CONF.gpu.pci_numa_affinity_policy)
            is_strict = policy in affinity.STRICT
            if whole and topology and is_strict and whole.count > most * len(topology):
                needed = math.ceil(whole.count / most)
                lines.append(f"{flavor.name} with {whole.count} GPUs: hw:numa_nodes={needed}")
    return lines


def stranded_gpus() -> list[str]:
    """Return a line for each host with free GPUs, but no CPU or memory left for any flavor.

    Hosts that keep CPU or memory for their free GPUs are left out.
    """
    flavors = [
        (flavor, request_)
        for flavor, requests in _flavors()
        for request_ in requests
        if isinstance(request_, GPURequest)
    ]
    lines = []
    for node, report in _reports():
        if report.reserved_per_free_gpu:
            continue
        vcpus = node.vcpus * (node.cpu_allocation_ratio or 1.0) - node.vcpus_used
        memory_mib = node.memory_mb * (node.ram_allocation_ratio or 1.0) - node.memory_mb_used
        served = [flavor for flavor, request_ in flavors if _has_free(request_, report)]
        if served and not any(f.vcpus <= vcpus and f.memory_mb <= memory_mib for f in served):
            lines.append(
                f"{node.hypervisor_hostname}: {report.free_gpus} free, with "
                f"{max(vcpus, 0):g} vCPUs and {max(memory_mib, 0):g} MiB of memory"
            )
    return sorted(lines)


def _texts() -> Iterator[tuple[objects.ComputeNode, str]]:
    for context in checks.in_cells():
        for node in objects.ComputeNodeList.get_all(context):
            if (text := (node.stats or {}).get(names.STATS)) is not None:
                yield node, text


def _reports() -> Iterator[tuple[objects.ComputeNode, Report]]:
    """Yield each host with its report, if that can be read."""
    for node, text in _texts():
        with contextlib.suppress(exception.InvalidStats):  # another check names it
            yield node, stats.loads(text)


def _flavors() -> Iterator[tuple[objects.Flavor, Sequence[Request]]]:
    """Yield each flavor that asks for GPUs or vGPUs and can be read, with its requests."""
    for flavor in objects.FlavorList.get_all(nova_context.get_admin_context()):
        with contextlib.suppress(exception.InvalidExtraSpec):  # another check names it
            if requests := _requests(request.of(flavor.extra_specs)):
                yield flavor, requests


def _requests(flavor: FlavorRequest) -> Sequence[Request]:
    if flavor.requests or not flavor.asks_for_vgpus:
        return flavor.requests
    # Nova's own words for vGPUs name no type.
    groups = request_group.parse(flavor.extra_specs, names.VGPU_RESOURCE_CLASS)
    return (VGPURequest(sum(g.count for g in groups.values()), None, (*groups.values(),), True),)


def _has_free(request_: GPURequest, report: Report) -> bool:
    """Return whether *report* has a group with enough cards free for each request group."""
    return all(
        any(
            sum(count for *_, count in cells) >= part.count
            for _, cells in fit.giving(report, request_, part)
        )
        for part in request_.groups
    )


def _candidates(requests: Sequence[Request], report: Report) -> int:
    """Return how many allocation candidates the host of *report* makes while all is free."""
    return math.prod(
        sum(fit.taking(request_, report.divided))
        if isinstance(request_, VGPURequest)
        else sum(fit.serves(group, request_, part) for group in report.host.groups)
        for request_ in requests
        for part in request_.groups
    )


def _differs(text: str) -> str | None:
    try:
        version, theirs = stats.version(text), stats.loads(text).release
    except exception.InvalidStats as error:
        return str(error)
    if version != stats.VERSION:
        return f"version {version} of the report, not {stats.VERSION}"
    own = release.running()
    return None if theirs == own else f"{theirs or 'an older release'}, not {own}"
