# SPDX-License-Identifier: Apache-2.0
"""Whether a host's GPUs or vGPUs fit a request, and what instances without GPUs must leave free."""

from __future__ import annotations

from collections.abc import Iterator

from nova_gpu.core.flavor import gpu_extra_specs
from nova_gpu.core.flavor.declaration import Facts
from nova_gpu.core.flavor.placement_policy import Topology
from nova_gpu.core.flavor.request import GPURequest, VGPURequest
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.scheduling.stats import Divided, GroupStats, Report, Reserved
from nova_gpu.core.topology.topology import Cells
from nova_gpu.core.vgpu.vgpu import VGPUType

# The words about vGPUs that stats have facts for; Placement judges the others.
_REPORTED_OF_TYPES = (gpu_extra_specs.MEMORY_MIB, gpu_extra_specs.HEADS)


def serves(group: GroupStats, request: GPURequest, part: GroupRequest) -> bool:
    """Return whether *group* could serve the request group *part* if all its cards were free.

    An unknown fact about the group satisfies no condition.
    """
    largest = {
        Topology.ANY: group.total,
        Topology.NUMA: group.islands.numa,
        Topology.NVLINK: group.islands.nvlink,
    }
    return (
        largest[request.arrangement.required(part.count)] >= part.count
        and group.total >= part.count
        and (not group.partitions or part.count in group.partitions)
        and (not request.demands or _meets(group, request))
    )


def _meets(group: GroupStats, request: GPURequest) -> bool:
    facts = Facts(group.architecture, group.model, group.memory_mib)
    return all(demand.is_met(facts) for demand in request.demands)


def giving(report: Report, request: GPURequest, part: GroupRequest) -> Iterator[tuple[int, Cells]]:
    """Yield the groups of *report* that could serve *part*: their index and their free GPUs.

    The free GPUs may be too few. :func:`nova_gpu.core.topology.topology.cells` explains their form.
    A group that gives exact sets is left out unless a set of that size is free.
    """
    for number, (group, cells, sets) in enumerate(report.each_group()):
        if serves(group, request, part) and (not group.partitions or dict(sets).get(part.count)):
            yield number, cells


def free(report: Report, request: GPURequest, part: GroupRequest) -> int:
    """Return how many GPUs are free in all groups of *report* that could serve *part*.

    Whether they form one of the exact sets of a board is not checked.
    """
    return sum(
        count
        for group, cells, _ in report.each_group()
        if serves(group, request, part)
        for *_, count in cells
    )


def most_free(request: VGPURequest, divided: Divided) -> int:
    """Return how many more vGPUs that serve *request* fit on all cards of a host.

    If several types serve it, the number is that of the type of which most fit: types share cards,
    so their numbers do not add up. A type that is given in exact sets counts 0 if no set of the
    size is free.
    """
    sets = divided.sets or ((),) * len(divided.vgpus)
    fitting = (
        count
        for (*_, count), takes, entry in zip(
            divided.vgpus, taking(request, divided), sets, strict=True
        )
        if takes and (not entry or all(dict(entry).get(part.count) for part in request.groups))
    )
    return max(fitting, default=0)


def taking(request: VGPURequest, divided: Divided) -> list[bool]:
    """Return for each type of *divided* whether its vGPUs could serve *request*."""
    known = divided.facts or ((None, None),) * len(divided.vgpus)
    return [
        _takes(request, VGPUType(type_id, name, memory_mib, heads))
        for (type_id, name, _), (memory_mib, heads) in zip(divided.vgpus, known, strict=True)
    ]


def _takes(request: VGPURequest, facts: VGPUType) -> bool:
    known = Facts(None, None, facts.memory_mib, facts)
    reported = (demand for demand in request.demands if demand.word in _REPORTED_OF_TYPES)
    return request.takes_type(facts) and all(demand.is_met(known) for demand in reported)


def stranded(
    vcpus_left: float, memory_mib_left: float, free_gpus: int, reserved: Reserved
) -> str | None:
    """Return why an instance without GPUs would strand GPUs, ``None`` if it would not.

    GPUs are stranded if their host has no CPU or memory left for the instances that would use them.

    :param vcpus_left: what the host would have left for other instances, as Placement counts: with
        its allocation ratio, without what the host reserves for itself
    :param memory_mib_left: the memory that the host would have left, counted in the same way
    """
    for left, resource, what in (
        (vcpus_left, reserved.vcpus, "vCPUs"),
        (memory_mib_left, reserved.memory_mib, "MiB of memory"),
    ):
        # Nothing is reserved without free GPUs. A host that exceeds its limit already is not
        # refused for it.
        if resource and free_gpus and left < resource * free_gpus:
            rest = f"{max(left, 0):g} {what} would be left"
            return f"{rest}, and {free_gpus} free GPUs need {resource} each"
    return None
