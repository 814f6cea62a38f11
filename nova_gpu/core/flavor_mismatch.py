# SPDX-License-Identifier: Apache-2.0
"""Comparison of the GPUs and vGPUs that an instance holds with those its flavor requests."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

from nova_gpu.core import names
from nova_gpu.core.flavor.declaration import Facts
from nova_gpu.core.flavor.placement_policy import Arrangement, Topology
from nova_gpu.core.flavor.request import FlavorRequest, GPURequest, VGPURequest
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.model import GPU
from nova_gpu.core.topology import nearness
from nova_gpu.core.topology.nearness import Neighbour
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.core.vgpu.vgpu_group import VGPUGroup


@dataclasses.dataclass(frozen=True, slots=True)
class HeldGPUs:
    """GPUs of one instance that have the properties here in common; ``count`` is their number.

    ``traits`` returns the traits of their provider; it is called only for a flavor with a condition
    on a trait that the virt driver sets. ``circle`` is equal for GPUs that direct links (NVLink,
    XGMI) join, and differs for all others.
    """

    count: int
    architecture: str | None
    traits: Callable[[], frozenset[str]]
    model: str | None = None
    memory_mib: int | None = None
    numa_node: int | None = None
    circle: Hashable = None


def gpu_mismatch(
    request: GPURequest | None, held: Sequence[HeldGPUs], hypervisor_type: str | None
) -> str | None:
    """Return why the GPUs in *held* do not match the flavor's request, ``None`` if they do.

    Only the traits that the virt driver sets are compared: Placement has checked the others. Each
    request group is compared with all of *held*: whether one GPU serves two groups is not checked.
    """
    count = sum(part.count for part in held)
    want = request.count if request else 0
    if count != want:
        return f"the instance holds {count} GPUs, and its flavor asks for {want}"
    if request is None:
        return None
    if request.hypervisor and not request.hypervisor.matches(hypervisor_type):
        return (
            f"the host's hypervisor is {hypervisor_type}, and the instance's flavor asks for "
            f"{request.hypervisor}"
        )
    if request.architecture:
        for part in held:
            if not request.architecture.matches(part.architecture):
                return (
                    f"the instance holds a GPU of architecture {part.architecture or 'unknown'}, "
                    f"and its flavor asks for {request.architecture}"
                )
    for group in request.groups:
        fitting = sum(part.count for part in _fitting(group, held))
        if fitting < group.count:
            required, forbidden = _own_traits(group)
            wanted = ", ".join(sorted(required) + [f"!{trait}" for trait in sorted(forbidden)])
            return (
                f"the flavor asks for {group.count} GPUs with {wanted}, and the instance holds "
                f"{fitting}"
            )
    return None


def other_product(request: GPURequest, held: Sequence[HeldGPUs]) -> str | None:
    """Return a mismatch in the product's name or memory, ``None`` without one.

    Only for an instance that has just got its GPUs: NVML may report these facts in one run of
    nova-compute and not in the next, and a guest with the GPUs must still start then.
    """
    for part in held:
        facts = Facts(part.architecture, part.model, part.memory_mib)
        for demand in request.demands:
            if demand.word.holds and not demand.is_met(facts):
                known, unknown = demand.word.holds
                fact = demand.fact(facts)
                return (
                    f"the instance holds {known.format(fact) if fact else unknown}, and its flavor "
                    f"asks for {demand.word.name} {demand.condition}"
                )
    return None


def apart(request: GPURequest, held: Sequence[HeldGPUs]) -> str | None:
    """Return why the GPUs in *held* are farther apart than the flavor permits, ``None`` if not."""
    for group in request.groups:
        topology = request.arrangement.required(group.count)
        if topology is Topology.ANY:
            continue
        islands: collections.Counter[Hashable] = collections.Counter()
        for part in _fitting(group, held):
            island = part.numa_node if topology is Topology.NUMA else part.circle
            if island is not None:
                islands[island] += part.count
        largest = max(islands.values(), default=0)
        if largest < group.count:
            return (
                f"its flavor requires {group.count} GPUs with {names.TOPOLOGY} {topology}, but "
                f"only {largest} of its GPUs are together"
            )
    return None


def not_beside(
    arrangement: Arrangement, cards: Collection[GPU], neighbours: Collection[Neighbour]
) -> str | None:
    """Return why *cards* violate the flavor's ``gpu:near``, ``None`` if they do not."""
    if not (cards and arrangement.insists_on_near):
        return None
    wanted = nearness.wanted(arrangement.near, neighbours)
    far = sum(nearness.distance(card, wanted) == nearness.FAR for card in cards)
    if not far:
        return None
    begin = f"its flavor requires {names.NEAR} {arrangement.near}, but "
    if not wanted:
        return f"{begin}the instance has no such device by pci_passthrough:alias or by a port"
    return f"{begin}{far} of its {len(cards)} GPUs are on another NUMA node"


def vgpu_mismatch(flavor: FlavorRequest, held: Sequence[VGPUType]) -> str | None:
    """Return why the vGPUs that an instance holds do not match its flavor, ``None`` if they do.

    :raises InvalidExtraSpec: if the flavor cannot be parsed
    """
    request = flavor.vgpus
    if request is None:
        # A flavor with resources:VGPU alone may get vGPUs of Nova's own, which nova-gpu does not
        # see.
        if held and not flavor.asks_for_vgpus:
            return f"the instance holds {len(held)} vGPUs, and its flavor asks for none"
        return None
    if request.count != len(held):
        return f"the flavor asks for {request.count} vGPUs, and the instance holds {len(held)}"
    for facts in held:
        if not request.takes_type(facts):
            return (
                f"the flavor asks for vGPUs with {names.VGPU_TYPE} {request.type}, not {facts.id}"
            )
    return None


def more_than_a_guest_can_have(held: Sequence[VGPUType]) -> str | None:
    """Return why one guest cannot have all these vGPUs, ``None`` if it can or that is unknown.

    Placement refuses too many vGPUs of one group, but a flavor with ``resources:VGPU`` in several
    request groups may get them from several groups.
    """
    for facts in held:
        count = sum(vgpu_type.id == facts.id for vgpu_type in held)
        if facts.per_guest is not None and facts.per_guest < count:
            return (
                f"a guest can have {facts.per_guest} vGPU of type {facts.name or facts.id}, and "
                f"the instance holds {count}"
            )
    return None


def other_vgpu_facts(request: VGPURequest, held: Sequence[VGPUGroup]) -> str | None:
    """Return a mismatch in the product or the vGPU type's facts, ``None`` without one.

    Only for an instance that has just got its vGPUs, as in :func:`other_product`.
    """
    for group in held:
        product = group.product
        facts = Facts(product.architecture, product.name, group.facts.memory_mib, group.facts)
        for demand in request.demands:
            if not demand.is_met(facts):
                return (
                    f"the flavor asks for vGPUs with {demand.word.name} {demand.condition}, but "
                    f"that of {group.facts.id} is {demand.fact(facts) or 'unknown'}"
                )
    return None


def _fitting(group: GroupRequest, held: Sequence[HeldGPUs]) -> list[HeldGPUs]:
    """Return the members of *held* whose traits satisfy the request group *group*."""
    required, forbidden = _own_traits(group)
    if not (required or forbidden):
        return list(held)
    return [part for part in held if required <= (own := part.traits()) and not forbidden & own]


def _own_traits(group: GroupRequest) -> tuple[set[str], set[str]]:
    return _of_cards(group.required_traits), _of_cards(group.forbidden_traits)


def _of_cards(traits: Iterable[str]) -> set[str]:
    """Return those of *traits* that the virt driver sets, without a total of the whole group."""
    return {
        trait
        for trait in traits
        if names.is_own_trait(trait) and not trait.startswith(names.TRAIT_TOTAL)
    }
