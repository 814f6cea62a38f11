# SPDX-License-Identifier: Apache-2.0
"""What the traits of a group of GPUs mean, in reStructuredText for the reference."""

from __future__ import annotations

import dataclasses

from nova_gpu.core import names


@dataclasses.dataclass(frozen=True, slots=True)
class Trait:
    """``prefix``: of :mod:`nova_gpu.core.names`. ``value``: what stands behind it, as a form."""

    prefix: str
    value: str
    meaning: str


# Of every group; of vGPUs as well, where they are those of the cards.
TRAITS = (
    Trait(names.TRAIT_GPU, "", "that these are GPUs of this driver"),
    Trait(names.TRAIT_ARCHITECTURE, "<ARCHITECTURE>", "the architecture"),
    Trait(
        names.TRAIT_HYPERVISOR,
        "<HYPERVISOR>",
        "the hypervisor of the host: ``LXC``, or ``QEMU`` with KVM as well as without",
    ),
    Trait(names.TRAIT_MODEL, "<NAME>", "the model, as ``nova-gpu list`` has it"),
    Trait(
        names.TRAIT_MEMORY, "<N>", "the memory of each card in MiB; of vGPUs that of each of them"
    ),
    Trait(
        names.TRAIT_TOTAL,
        "<N>",
        "how many GPUs or vGPUs the group has in all, with those that are reserved",
    ),
    Trait(
        names.TRAIT_NUMA_ISLAND,
        "<N>",
        "how many of the cards are on one NUMA node at most; 1 where nothing is known of it",
    ),
    Trait(
        names.TRAIT_NVLINK_ISLAND,
        "<N>",
        "how many of the cards direct links (NVLink, XGMI) join; 1 where nothing is known of it",
    ),
    Trait(
        names.TRAIT_NEAR,
        "<KIND>",
        "that some of the cards are at most on the NUMA node of a network function (``NIC``) or an "
        "NVMe disk (``NVME``) that ``[pci]device_spec`` has Nova give to instances",
    ),
    Trait(
        names.TRAIT_PEER_ACCESS,
        "<WAY>",
        "that a KVM guest's driver can be told that the cards reach each other's memory, over the "
        "host's root complex (``ROOT``)",
    ),
    Trait(
        names.TRAIT_PARTITION,
        "<M>_<M>",
        "the modules of a partition, of cards on a board whose NVSwitches join these and no others",
    ),
    Trait(
        names.TRAIT_FREE_MODULE,
        "<M>",
        "a module of such a board that an instance could be given now; it comes and goes with "
        "instances",
    ),
    Trait(
        names.TRAIT_CUDA,
        "<X>_<Y>",
        "the CUDA compute capability, where it is known. os-traits has it up to ``V7_2``; past "
        f"that it is ``CUSTOM_{names.TRAIT_CUDA}<X>_<Y>``.",
    ),
)
# Of groups of vGPUs beside those.
VGPU_TRAITS = (
    Trait(
        names.TRAIT_VGPU_TYPE, "<TYPE>", "the type: one trait for its id, one for its name if any"
    ),
    Trait(names.TRAIT_HEADS, "<N>", "how many displays each vGPU has"),
    Trait(
        names.TRAIT_RESOLUTION,
        "<X>H<Y>",
        "each resolution of os-traits that a display can have, where it is known",
    ),
    Trait(
        names.TRAIT_DISPLAY_HEADS,
        "<N>",
        "how many displays each vGPU has, where it is known and os-traits has the number",
    ),
)
