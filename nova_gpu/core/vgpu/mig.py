# SPDX-License-Identifier: Apache-2.0
"""What NVML tells of the MIG instances of a card, and how a slot names one of them."""

from __future__ import annotations

import dataclasses

# The driver has a node for each of eight compute instances of a GPU instance. Two digits are read
# as what they are, and leave nobody in doubt where the number of the GPU instance ends.
_COMPUTE_INSTANCES = 100
_GPU_INSTANCES = 10_000

LOST = "the MIG instance is no longer on its card"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class MIGInstance:
    """A compute instance of a GPU instance; ``None`` is what the library would not tell.

    ``profile`` is its size as NVIDIA's tools call it (``1g.18gb``), ``slices`` how many of those of
    its card's compute it has.
    """

    gpu_instance: int
    compute_instance: int
    profile: str | None = None
    memory_mib: int | None = None
    slices: int | None = None
    uuid: str | None = None

    @property
    def index(self) -> str:
        """``9/0``, the GPU instance and the compute instance as NVIDIA's tools write them"""
        return f"{self.gpu_instance}/{self.compute_instance}"


def slot_number(gpu_instance: int, compute_instance: int) -> int | None:
    """The number of the slot of a MIG instance: 900 of ``9/0``; ``None`` where it can have none.

    It is made of the ids that the driver's nodes are found by, and that an instance keeps as long
    as it is there. A place in the list of all would be another's as soon as the layout changes.
    """
    if compute_instance in range(_COMPUTE_INSTANCES) and gpu_instance in range(_GPU_INSTANCES):
        return gpu_instance * _COMPUTE_INSTANCES + compute_instance
    return None


def of_slot(number: int) -> tuple[int, int]:
    """The GPU instance and the compute instance: the reverse of :func:`slot_number`"""
    return divmod(number, _COMPUTE_INSTANCES)
