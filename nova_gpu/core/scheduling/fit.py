# SPDX-License-Identifier: Apache-2.0
"""Whether a group of GPUs is built for what is asked."""

from __future__ import annotations

from nova_gpu.core.flavor.arrangement import Topology
from nova_gpu.core.flavor.request import GPURequest
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.scheduling.stats import GroupStats


def serves(group: GroupStats, asked: GPURequest, part: GroupRequest) -> bool:
    """Whether *group* could give all of *part* if nobody had any of its cards.

    What is not known of the group satisfies nothing.
    """
    largest = {
        Topology.ANY: group.total,
        Topology.NUMA: group.islands.numa,
        Topology.NVLINK: group.islands.nvlink,
    }
    return (
        largest[asked.arrangement.required(part.count)] >= part.count
        and group.total >= part.count
        and (asked.architecture is None or asked.architecture.matches(group.architecture))
        and (asked.model is None or asked.model.matches(group.model))
        and (asked.memory_mib is None or asked.memory_mib.matches(group.memory_mib))
    )
