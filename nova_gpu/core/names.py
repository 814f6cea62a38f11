# SPDX-License-Identifier: Apache-2.0
"""All strings that nova-gpu's services exchange with each other and with Nova and Placement."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping

from nova_gpu.core import model

# os_resource_classes.PGPU; a test compares them. This package imports the standard library only.
RESOURCE_CLASS = "PGPU"
# os_resource_classes.VGPU, for parts of cards
VGPU_RESOURCE_CLASS = "VGPU"
RESOURCE_CLASSES = (RESOURCE_CLASS, VGPU_RESOURCE_CLASS)

TRAIT_GPU = "CUSTOM_GPU"
TRAIT_ARCHITECTURE = "CUSTOM_GPU_ARCH_"
TRAIT_HYPERVISOR = "CUSTOM_GPU_HYPERVISOR_"
TRAIT_MODEL = "CUSTOM_GPU_MODEL_"
TRAIT_MEMORY = "CUSTOM_GPU_MEMORY_MIB_"
# The total of a group's inventory; in Placement's summaries it lacks what is reserved.
TRAIT_TOTAL = "CUSTOM_GPU_TOTAL_"
# The largest number of a group's cards on one NUMA node, and joined by NVLinks.
TRAIT_NUMA_ISLAND = "CUSTOM_GPU_NUMA_ISLAND_"
TRAIT_NVLINK_ISLAND = "CUSTOM_GPU_NVLINK_ISLAND_"
# The kinds of devices near a group's cards that Nova's own passthrough gives to instances.
TRAIT_NEAR = "CUSTOM_GPU_NEAR_"
# The path over which a group's cards can access each other's memory in guests.
TRAIT_PEER_ACCESS = "CUSTOM_GPU_PEER_ACCESS_"
OVER_ROOT = "root"
# For cards that guests get in exact sets: the numbers of each set's cards on their board, joined
# by _, and that of each free card.
TRAIT_PARTITION = "CUSTOM_GPU_PARTITION_"
TRAIT_FREE_MODULE = "CUSTOM_GPU_FREE_MODULE_"
# A vGPU type's id, and its name.
TRAIT_VGPU_TYPE = "CUSTOM_GPU_VGPU_TYPE_"
# The number of displays of a vGPU. The standard trait does not exist for every number, nor for an
# unknown number, so a flavor could not forbid it.
TRAIT_HEADS = "CUSTOM_GPU_HEADS_"
TRAIT_CUDA = "HW_GPU_CUDA_COMPUTE_CAPABILITY_V"
# From os-traits: the resolutions that a vGPU's heads can show, and their number.
TRAIT_RESOLUTION = "HW_GPU_RESOLUTION_W"
TRAIT_DISPLAY_HEADS = "HW_GPU_MAX_DISPLAY_HEADS_"
# os_traits.COMPUTE_STATUS_DISABLED: Nova's own, on the node of a disabled service
DISABLED = "COMPUTE_STATUS_DISABLED"
# The value after a prefix above for an unknown fact: flavors can forbid it, never require it.
UNKNOWN = "UNKNOWN"

# What Nova calls the hypervisor of KVM hosts, accelerated or not, as a word()
LXC = "lxc"
QEMU = "qemu"

# The words of the flavor.
GPUS = "gpus"
GPU_ARCH = "gpu_arch"
HYPERVISOR = "hypervisor"
HYPERVISOR_TYPE = "hypervisor_type"
MODEL = "gpu:model"
MEMORY_MIB = "gpu:memory_mib"
TOPOLOGY = "gpu:topology"
TOPOLOGY_POLICY = "gpu:topology_policy"
DISTRIBUTION = "gpu:distribution"
NEAR = "gpu:near"
NEAR_POLICY = "gpu:near_policy"
PEER_ACCESS = "gpu:peer_access"
OPTION_ROM = "gpu:option_rom"
GUEST_TOPOLOGY = "gpu:guest_topology"
ON_STOP = "gpu:on_stop"
VGPUS = "vgpus"
VGPU_TYPE = "vgpu_type"
VGPU_PARAMS = "gpu:vgpu_params"
HEADS = "gpu:heads"

# Nova's own word for PCI devices of its passthrough
PCI_ALIAS = "pci_passthrough:alias"
# Nova's own words that hide the hypervisor from guests: in flavors, and in images.
HIDDEN = ("hw:hide_hypervisor_id", "hide_hypervisor_id")
IMAGE_HIDDEN = "img_hide_hypervisor_id"

# The key of ComputeNode.stats under which a host reports its GPUs as one JSON string. It must not
# be one of the words above: ComputeCapabilitiesFilter judges every un-namespaced extra spec that
# has a key of the same name in stats.
STATS = "nova_gpu"

# Keys of an instance's system_metadata: the description of its GPUs for the guest, and what it had
# by stock Nova, each followed by a number from 0; and what its image says about a stop.
GUEST_DEVICES = "nova_gpu_devices_"
FORMER = "nova_gpu_former_"
IMAGE_ON_STOP = f"image_{ON_STOP}"
# Nova's own: the machine type that the instance's image states
IMAGE_MACHINE_TYPE = "image_hw_machine_type"

# Diagnostics of a running guest for each of its GPUs: a number from 0, and one of address, product,
# name, numa_node, trouble, module, and cells, the NUMA nodes of the guest's own: "0, 1".
DIAGNOSTIC = "gpu{}_{}"

# The environment of [gpu]clean_command.
CLEAN_ADDRESS = "NOVA_GPU_ADDRESS"
CLEAN_MODE = "NOVA_GPU_MODE"
CLEAN_PRODUCT = "NOVA_GPU_PRODUCT"
CLEAN_MIG_INSTANCE = "NOVA_GPU_MIG_INSTANCE"

_OWN_PREFIXES = (
    *(TRAIT_ARCHITECTURE, TRAIT_HYPERVISOR, TRAIT_MODEL, TRAIT_MEMORY, TRAIT_TOTAL),
    *(TRAIT_NUMA_ISLAND, TRAIT_NVLINK_ISLAND, TRAIT_CUDA, f"CUSTOM_{TRAIT_CUDA}"),
    *(TRAIT_VGPU_TYPE, TRAIT_HEADS, TRAIT_NEAR, TRAIT_PARTITION, TRAIT_FREE_MODULE),
    TRAIT_PEER_ACCESS,
)

# Placement: resource providers' names have 200 characters, traits 255.
_PROVIDER_NAME_LENGTH = 200
_TRAIT_LENGTH = 255

_WITHOUT_EXTENSIONS = re.compile(r"(\dg\.\d+gb)-(?=[a-z])")
_WHOLE = "|".join(mode for mode in model.DeliveryMode if mode is not model.DeliveryMode.VGPU)
# host1_pci_0000_3b_00_0
_STOCK_VGPUS = re.compile("_pci_([0-9a-f]{4,8})_([0-9a-f]{2})_([0-9a-f]{2})_([0-7])")
_ID = "[0-9a-f]{4}"
# host1_gpu_10de_2335_pci, host1_gpu_10de_25b6_10de_157e_pci, host1_gpu_10de_2335_vgpu_nvidia-35
_GROUP = re.compile(
    rf"_gpu_({_ID})_({_ID})_(?:(?:({_ID})_({_ID})_)?({_WHOLE})|{model.DeliveryMode.VGPU}_(.+))"
)


def is_own_trait(trait: str) -> bool:
    """Return whether *trait* is one that the virt driver sets and removes on providers of GPUs."""
    return trait == TRAIT_GPU or trait.startswith(_OWN_PREFIXES)


# The scheduler filter needs the forms of the same few names at each request.
@functools.lru_cache(maxsize=4096)
def word(value: str | None) -> str | None:
    """Return the normal form of a name, to compare it: ``xe_hpc`` for ``XE-HPC``.

    Return ``None`` for a name that is empty or ``unknown``. In upper case the form fits into the
    name of a trait. A MIG profile without media extensions stays distinct from one with them:
    ``1g.24gb-me`` is ``1g_24gb_minus_me``.
    """
    signed = _WITHOUT_EXTENSIONS.sub(r"\1_minus_", (value or "").lower())
    plain = re.sub(r"[^a-z0-9]+", "_", signed).strip("_")
    return plain if plain not in ("", UNKNOWN.lower()) else None


def trait(prefix: str, value: str | int | None) -> str:
    """Return the trait that states *value*, which is ``None`` if unknown, after *prefix*."""
    text = word(None if value is None else str(value)) or UNKNOWN
    return (prefix + text.upper())[:_TRAIT_LENGTH]


def model_class(model: str | None) -> str | None:
    """Return the resource class that counts cards by *model*, ``None`` if that is unknown.

    It has the name of the model's trait.
    """
    return trait(TRAIT_MODEL, model) if word(model) else None


def is_model_class(resource_class: str) -> bool:
    """Return whether *resource_class* counts cards that ``PGPU`` counts too, by their model."""
    return resource_class.startswith(TRAIT_MODEL)


def is_gpu_class(resource_class: str) -> bool:
    """Return whether *resource_class* counts GPUs or vGPUs of nova-gpu's providers."""
    return resource_class in RESOURCE_CLASSES or is_model_class(resource_class)


def gpus_in(resources: Mapping[str, int]) -> int:
    return sum(resources.get(name, 0) for name in RESOURCE_CLASSES)


def peer_access_trait() -> str:
    return trait(TRAIT_PEER_ACCESS, OVER_ROOT)


def vgpu_type_trait(name: str) -> str:
    return trait(TRAIT_VGPU_TYPE, name)


def provider_name(nodename: str, key: model.GroupKey) -> str:
    """Return the name of a group's resource provider on the compute node *nodename*.

    No release may change it: Placement would need a reshape. If the name is too long for Placement,
    *nodename* is cut and followed by a hash of the whole, so that two long names stay distinct.
    """
    mode = key.mode if key.vgpu_type is None else f"{key.mode}_{key.vgpu_type}"
    suffix = f"_gpu_{key.product.replace(':', '_')}_{mode}"
    if len(nodename) + len(suffix) <= _PROVIDER_NAME_LENGTH:
        return nodename + suffix
    digest = hashlib.sha256(nodename.encode()).hexdigest()[:16]
    length = _PROVIDER_NAME_LENGTH - len(suffix) - len(digest) - 1
    return f"{nodename[:length]}_{digest}{suffix}"


def parse_provider_name(nodename: str, name: str) -> model.GroupKey | None:
    """Return the group whose provider on *nodename* has this *name*, ``None`` if none has."""
    # The name of a node or a type may look like the end of a provider's name.
    for begin in re.finditer("(?=_gpu_)", name):
        match = _GROUP.fullmatch(name, begin.start())
        if match is not None:
            mode = model.DeliveryMode(match[5] or model.DeliveryMode.VGPU)
            board = f"{match[3]}:{match[4]}" if match[3] else None
            key = model.GroupKey(match[1], match[2], mode, match[6], board)
            if name == provider_name(nodename, key):
                return key
    return None


def parse_stock_provider_name(nodename: str, name: str) -> model.PciAddress | None:
    """Return the function at which stock Nova makes the vGPUs of the provider with this *name*.

    Return ``None`` for other providers (``LibvirtDriver._update_provider_tree_for_vgpu``).
    """
    match = _STOCK_VGPUS.fullmatch(name.removeprefix(nodename)) if name != nodename else None
    return model.PciAddress.parse("{}:{}:{}.{}".format(*match.groups())) if match else None


def known_values(prefix: str, traits: Iterable[str]) -> frozenset[str]:
    """Return the text after *prefix* in those *traits* that begin with it, in lower case.

    The trait for an unknown value (:data:`UNKNOWN`) is left out.
    """
    values = {trait.removeprefix(prefix) for trait in traits if trait.startswith(prefix)}
    return frozenset(value.lower() for value in values - {UNKNOWN})
