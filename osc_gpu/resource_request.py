# SPDX-License-Identifier: Apache-2.0
"""Nova's translation of a flavor into a query to Placement, for the client.

The image counts as one that requests no resources. The client runs on machines without Nova; a test
compares this module with ``nova.scheduler.utils.ResourceRequest``, whose order of steps it has.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib import parse

import os_resource_classes as orc

from nova_gpu.core.flavor import parsers

_KEY = re.compile(r"(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)\n?")
# The longest list of processors that is expanded
_MOST_CPUS = 4096

# The traits that a value of a property requests, "!" before a forbidden one
_TRAITS = {
    "hw:cpu_thread_policy": {
        "isolate": "!HW_CPU_HYPERTHREADING",
        "require": "HW_CPU_HYPERTHREADING",
    },
    "hw:pci_numa_affinity_policy": {"socket": "COMPUTE_SOCKET_PCI_NUMA_AFFINITY"},
    "hw:maxphysaddr_mode": {
        "passthrough": "COMPUTE_ADDRESS_SPACE_PASSTHROUGH",
        "emulate": "COMPUTE_ADDRESS_SPACE_EMULATED",
    },
    "hw:tpm_version": {"1.2": "COMPUTE_SECURITY_TPM_1_2", "2.0": "COMPUTE_SECURITY_TPM_2_0"},
    "os:secure_boot": {"required": "COMPUTE_SECURITY_UEFI_SECURE_BOOT"},
}
_TPM_MODELS = {
    "tpm-tis": "COMPUTE_SECURITY_TPM_TIS",
    "tpm-crb": "COMPUTE_SECURITY_TPM_CRB",
}
_ENCRYPTION_MODELS = {"amd-sev": "HW_CPU_X86_AMD_SEV", "amd-sev-es": "HW_CPU_X86_AMD_SEV_ES"}


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """A flavor's own fields, in Nova's units: MiB of memory and swap, GiB of disk."""

    vcpus: int
    ram: int
    disk: int
    ephemeral: int
    swap: int

    @classmethod
    def of(cls, flavor: Any, *, boots_from_volume: bool = False) -> Size:
        """Return the size of an instance of *flavor*."""
        return cls(
            vcpus=flavor.vcpus,
            ram=flavor.ram,
            disk=0 if boots_from_volume else flavor.disk,
            ephemeral=flavor.ephemeral or 0,
            swap=int(flavor.swap or 0),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Group:
    """A request group of Placement's query; "!" precedes a forbidden trait in ``traits``."""

    resources: dict[str, int] = dataclasses.field(default_factory=dict)
    traits: set[str] = dataclasses.field(default_factory=set)

    def add(self, resource_class: str, amount: int | str) -> None:
        """Set the amount of a class; ignore, as Nova does, an unknown class or a wrong amount."""
        known = resource_class.startswith(orc.CUSTOM_NAMESPACE) or resource_class in orc.STANDARDS
        try:
            number = int(amount)
        except ValueError:
            return
        if known and number >= 0:
            self.resources[resource_class] = number


def make(size: Size, specs: Mapping[str, str]) -> tuple[str, Mapping[str, int]]:
    """Return the query string without ``limit``, and the unsuffixed group's amounts, by class.

    :raises ValueError: if Nova would refuse the flavor's ``hw:cpu_*`` properties
    """
    groups: dict[str, _Group] = collections.defaultdict(_Group)
    for key, value in specs.items():
        if match := _KEY.fullmatch(key):
            kind, suffix, name = match.groups(default="")
            if kind == "resources":
                groups[suffix].add(name, value)
            elif value in ("required", "forbidden"):
                groups[suffix].traits.add(name if value == "required" else f"!{name}")
    own = groups[""]
    for resource_class, amount in _processors(size, specs):
        own.add(resource_class, amount)
    counted = {name for group in groups.values() for name in group.resources}
    for resource_class, amount in _defaults(size, counted):
        own.add(resource_class, amount)
    for resource_class, amount in _properties(specs):
        own.add(resource_class, amount)
    own.traits.update(_traits(specs))
    return _query(groups, specs.get("group_policy", "")), _positive(own)


def _processors(size: Size, specs: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield VCPU and PCPU, each with its amount, as ``hw:cpu_policy`` divides the vCPUs.

    Yield nothing if the property is missing or ``shared``.
    """
    policy = specs.get("hw:cpu_policy")
    if policy not in ("dedicated", "mixed"):
        return
    dedicated = size.vcpus
    if policy == "mixed":
        dedicated = len(_dedicated(size.vcpus, specs))
        yield orc.VCPU, size.vcpus - dedicated
    yield orc.PCPU, dedicated + (specs.get("hw:emulator_threads_policy") == "isolate")


def _dedicated(vcpus: int, specs: Mapping[str, str]) -> frozenset[int]:
    """Return the numbers of the dedicated vCPUs under the policy ``mixed``."""
    if mask := specs.get("hw:cpu_dedicated_mask"):
        return _masked(vcpus, mask)
    if parsers.is_true(specs.get("hw:cpu_realtime")):
        return _masked(vcpus, specs.get("hw:cpu_realtime_mask") or f"0-{vcpus - 1}")
    return frozenset()


def _masked(vcpus: int, mask: str) -> frozenset[int]:
    """Return the vCPU numbers in a mask such as ``0-3,^1``; ``^0`` means all of *vcpus* but 0."""
    if mask.strip().startswith("^"):
        mask = f"0-{vcpus - 1},{mask}"
    chosen: set[int] = set()
    excluded: set[int] = set()
    for rule in filter(None, map(str.strip, mask.split(","))):
        first, _, last = rule.removeprefix("^").partition("-")
        if int(last or first) > _MOST_CPUS:
            raise ValueError(f"{mask!r} has a vCPU number above {_MOST_CPUS}")
        numbers = range(int(first), int(last or first) + 1)
        (excluded if rule.startswith("^") else chosen).update(numbers)
    return frozenset(chosen - excluded)


def _defaults(size: Size, counted: set[str]) -> Iterator[tuple[str, int]]:
    """Yield the resources of the flavor's own fields whose class *counted* lacks."""
    if not counted & {orc.VCPU, orc.PCPU}:
        yield orc.VCPU, size.vcpus
    if orc.MEMORY_MB not in counted:
        yield orc.MEMORY_MB, size.ram
    if orc.DISK_GB not in counted:
        yield orc.DISK_GB, size.disk + size.ephemeral + math.ceil(size.swap / 1024)


def _properties(specs: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    if parsers.is_true(specs.get("hw:mem_encryption")):
        yield orc.MEM_ENCRYPTION_CONTEXT, 1
    labels = filter(None, map(str.strip, specs.get("hw:pmem", "").split(",")))
    for label, count in collections.Counter(labels).items():
        yield orc.normalize_name(f"PMEM_NAMESPACE_{label}"), count


def _traits(specs: Mapping[str, str]) -> Iterator[str]:
    for key, traits in _TRAITS.items():
        if trait := traits.get(specs.get(key, "")):
            yield trait
    if specs.get("hw:tpm_version") and (
        trait := _TPM_MODELS.get(specs.get("hw:tpm_model") or "tpm-tis")
    ):
        yield trait
    if parsers.is_true(specs.get("hw:mem_encryption")) and (
        trait := _ENCRYPTION_MODELS.get(specs.get("hw:mem_encryption_model") or "amd-sev")
    ):
        yield trait


def _query(groups: Mapping[str, _Group], policy: str) -> str:
    # As in Nova's own request filter
    pairs = [("root_required", "!COMPUTE_STATUS_DISABLED")]
    if policy in ("none", "isolate"):
        pairs.append(("group_policy", policy))
    for suffix, group in groups.items():
        amounts = ",".join(sorted(f"{name}:{n}" for name, n in _positive(group).items()))
        # Forbidden traits come last.
        traits = ",".join(sorted(group.traits, key=lambda trait: (trait.startswith("!"), trait)))
        pairs += [(f"resources{suffix}", amounts)] if amounts else []
        pairs += [(f"required{suffix}", traits)] if traits else []
    return parse.urlencode(sorted(pairs))


def _positive(group: _Group) -> dict[str, int]:
    return {name: amount for name, amount in group.resources.items() if amount}
