# SPDX-License-Identifier: Apache-2.0
"""What a flavor asks for: the one reader of its words.

``gpus``, ``gpu_arch``, ``hypervisor`` (older: ``hypervisor_type``) and ``gpu:...`` are ours;
``resources:PGPU`` and ``trait:`` are Nova's, in the unsuffixed request group or in suffixed ones. A
flavor may use either or both, and then they must agree.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, Protocol

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import arrangement, condition, quantity, request_group
from nova_gpu.core.flavor.arrangement import Arrangement, Topology
from nova_gpu.core.flavor.condition import Condition
from nova_gpu.core.flavor.quantity import Quantity
from nova_gpu.core.flavor.request_group import MAX_GPUS, GroupRequest

ALLOWED_COUNTS = f"'= N' or N, with N from 1 to {MAX_GPUS}"

# How Nova gives devices that Placement need not know: passthrough, and Cyborg's.
_OTHERS_DEVICES = frozenset({"pci_passthrough:alias", "accel:device_profile"})

# An instance gets exactly what it asks for, so all of these say the same.
_COUNT_OPERATORS = frozenset({"=", "==", ">="})

_HYPERVISORS = {"kvm": names.QEMU}

_ISLANDS = {
    Topology.NUMA: names.TRAIT_NUMA_ISLAND,
    Topology.NVLINK: names.TRAIT_NVLINK_ISLAND,
}

# What each GPU, or vGPU, must be
PRODUCT_WORDS = (names.GPU_ARCH, names.MODEL, names.MEMORY_MIB)
# Those and what else says nothing where the flavor asks for no GPU.
_GPU_WORDS = (*PRODUCT_WORDS, names.TOPOLOGY, names.TOPOLOGY_POLICY, names.DISTRIBUTION)


class Stated(Protocol):
    """What a flavor says of a name or of a number."""

    def matches(self, value: str | None) -> bool: ...

    @property
    def equal_to(self) -> str | None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class GPURequest:
    """The GPUs an instance is to have: ``count`` in all, which is the sum over ``groups``.

    ``counted`` says that the flavor itself has ``resources:PGPU``, which quota counts.
    """

    count: int
    architecture: Condition | None
    hypervisor: Condition | None
    groups: tuple[GroupRequest, ...]
    counted: bool
    model: Condition | None = None
    memory_mib: Quantity | None = None
    arrangement: Arrangement = arrangement.ANY

    resource_class: ClassVar[str] = names.RESOURCE_CLASS

    def conditions(self, group: GroupRequest) -> Iterator[tuple[str, Stated, str]]:
        """What a provider of *group* must be: the flavor's word, what it says, and the prefix of
        the traits that say what a provider is."""
        yield from of_product(self.architecture, self.model, self.memory_mib)
        if self.hypervisor:
            yield names.HYPERVISOR, self.hypervisor, names.TRAIT_HYPERVISOR
        if prefix := _ISLANDS.get(self.arrangement.required(group.count), ""):
            yield (
                f"{names.TOPOLOGY} {self.arrangement.topology}, islands of",
                Quantity(quantity.Operator.AT_LEAST, group.count),
                prefix,
            )


def of_product(
    architecture: Stated | None, model: Stated | None, memory_mib: Stated | None
) -> Iterator[tuple[str, Stated, str]]:
    """What :data:`PRODUCT_WORDS` say, as :meth:`GPURequest.conditions`"""
    stated = (
        (names.GPU_ARCH, architecture, names.TRAIT_ARCHITECTURE),
        (names.MODEL, model, names.TRAIT_MODEL),
        (names.MEMORY_MIB, memory_mib, names.TRAIT_MEMORY),
    )
    for key, said, prefix in stated:
        if said:
            yield key, said, prefix


def parse(extra_specs: Mapping[str, str]) -> GPURequest | None:
    """The GPUs a flavor asks for, or ``None`` where it asks for none.

    :raises InvalidExtraSpec: for a value that cannot be used, or two that contradict each other
    """
    gpus = extra_specs.get(names.GPUS)
    stated = None if gpus is None else parse_count(gpus)
    groups = request_group.agreeing(extra_specs, names.GPUS, stated, names.RESOURCE_CLASS)
    counted = sum(group.count for group in groups.values())
    count = stated or counted
    if not count:
        _refuse_stray_words(extra_specs)
        return None
    if not counted:
        required, forbidden = request_group.traits(extra_specs, "")
        groups[""] = GroupRequest("", count, required, forbidden)
    return GPURequest(
        count=count,
        architecture=parse_architecture(extra_specs),
        hypervisor=_agreed_hypervisor(extra_specs),
        groups=tuple(group for group in groups.values() if group.count),
        counted=bool(counted),
        model=parse_model(extra_specs),
        memory_mib=parse_memory(extra_specs),
        arrangement=arrangement.parse(extra_specs),
    )


def asks_for_gpus(extra_specs: Mapping[str, str]) -> bool:
    """Whether the flavor asks for GPUs at all, however badly."""
    return names.GPUS in extra_specs or request_group.ask_for_gpus(extra_specs)


def asks_for_parts(extra_specs: Mapping[str, str]) -> bool:
    """True where a flavor asks for vGPUs."""
    return names.VGPUS in extra_specs or request_group.ask_for_gpus(
        extra_specs, names.VGPU_RESOURCE_CLASS
    )


def speaks_of_parts(extra_specs: Mapping[str, str]) -> bool:
    """Whether :data:`PRODUCT_WORDS` are about vGPUs: where there are whole GPUs as well they are
    about those."""
    return asks_for_parts(extra_specs) and not asks_for_gpus(extra_specs)


def is_cpu_only(extra_specs: Mapping[str, str]) -> bool:
    """Whether the flavor asks for no device of any kind, ours or others'."""
    return not (
        asks_for_gpus(extra_specs)
        or names.VGPUS in extra_specs
        or request_group.devices(extra_specs)
        or extra_specs.keys() & _OTHERS_DEVICES
    )


def parse_count(text: str, key: str = names.GPUS) -> int:
    """:raises InvalidExtraSpec: where the value of *key* is not one of ALLOWED_COUNTS"""

    def refused(reason: str) -> exception.InvalidExtraSpec:
        return exception.InvalidExtraSpec(key, text, reason, ALLOWED_COUNTS)

    words = text.split()
    if len(words) == 2 and words[0] in _COUNT_OPERATORS:
        words = words[1:]
    if len(words) != 1:
        raise refused("an instance gets exactly the number of GPUs it asks for")
    if not re.fullmatch("[0-9]{1,9}", words[0]):
        raise refused(f"{words[0]!r} is not a whole number")
    count = int(words[0])
    if count == 0:
        raise refused("for no GPU leave the property out")
    if count > MAX_GPUS:
        raise refused("no host has that many")
    return count


def parse_architecture(extra_specs: Mapping[str, str]) -> Condition | None:
    """:raises InvalidExtraSpec: where ``gpu_arch`` is not one of condition.ALLOWED"""
    text = extra_specs.get(names.GPU_ARCH)
    return None if text is None else condition.parse(names.GPU_ARCH, text)


def parse_model(extra_specs: Mapping[str, str]) -> Condition | None:
    """:raises InvalidExtraSpec: where ``gpu:model`` is not one of condition.ALLOWED"""
    text = extra_specs.get(names.MODEL)
    return None if text is None else condition.parse(names.MODEL, text, spaces=True)


def parse_memory(extra_specs: Mapping[str, str]) -> Quantity | None:
    """:raises InvalidExtraSpec: where ``gpu:memory_mib`` is not one of quantity.ALLOWED"""
    text = extra_specs.get(names.MEMORY_MIB)
    return None if text is None else quantity.parse(names.MEMORY_MIB, text)


def parse_hypervisor(
    extra_specs: Mapping[str, str], key: str = names.HYPERVISOR
) -> Condition | None:
    """What the flavor says of the hypervisor under *key*, GPUs or not. KVM is QEMU, as in Nova.

    :raises InvalidExtraSpec: where it is not one of condition.ALLOWED
    """
    text = extra_specs.get(key)
    return None if text is None else condition.parse(key, text, _HYPERVISORS)


def _refuse_stray_words(extra_specs: Mapping[str, str]) -> None:
    """:raises InvalidExtraSpec: where a flavor without GPUs says what they must be"""
    of_parts = PRODUCT_WORDS if speaks_of_parts(extra_specs) else ()
    for key in _GPU_WORDS:
        if (text := extra_specs.get(key)) is None or key in of_parts:
            continue
        beside = f"{names.GPUS} or resources:{names.RESOURCE_CLASS}"
        if key in PRODUCT_WORDS:
            beside += f", {names.VGPUS} or resources:{names.VGPU_RESOURCE_CLASS}"
        raise exception.InvalidExtraSpec(
            key, text, "the flavor asks for no GPU", f"{key} beside {beside}"
        )


def _agreed_hypervisor(extra_specs: Mapping[str, str]) -> Condition | None:
    new = parse_hypervisor(extra_specs)
    old = parse_hypervisor(extra_specs, names.HYPERVISOR_TYPE)
    if new and old and new != old:
        raise exception.InvalidExtraSpec(
            names.HYPERVISOR_TYPE,
            extra_specs[names.HYPERVISOR_TYPE],
            f"{names.HYPERVISOR} says {extra_specs[names.HYPERVISOR]!r}",
            f"the same in both, or {names.HYPERVISOR} alone",
        )
    return new or old
