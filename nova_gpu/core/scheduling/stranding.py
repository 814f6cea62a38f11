# SPDX-License-Identifier: Apache-2.0
"""What instances without GPUs must leave for the GPUs that are free.

A GPU is stranded when its host has no CPU or memory left for the instance that would use it.
"""

from __future__ import annotations

from nova_gpu.core.scheduling.stats import Reserved


def stranded(
    vcpus_left: float, memory_mib_left: float, free_gpus: int, reserved: Reserved
) -> str | None:
    """Why an instance without GPUs takes too much, ``None`` where it does not.

    :param vcpus_left: what the host has for others beside it, as Placement counts: with its
        allocation ratio, without what the host keeps for itself
    :param memory_mib_left: the same of memory
    :param free_gpus: those that nobody has
    :param reserved: what is to be left for each of them
    """
    for left, each, what in (
        (vcpus_left, reserved.vcpus, "vCPUs"),
        (memory_mib_left, reserved.memory_mib, "MiB of memory"),
    ):
        # Nothing is kept for no GPU, and what is over the top already is not made good by this.
        if each and free_gpus and left < each * free_gpus:
            return (
                f"{max(left, 0):g} {what} would be left, and {free_gpus} free GPUs need {each} each"
            )
    return None
