# SPDX-License-Identifier: Apache-2.0
"""Which cards the operator has divided into MIG instances, and into what.

Two have to say the same: the driver, by its capabilities, which instances there are and which nodes
lead to them; NVML what size each of them has. A layout is read and never changed.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable

from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu import vgpu
from nova_gpu.core.vgpu.mig import MIGInstance, slot_number
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.roots import Roots


def divided(cards: Iterable[GPU], roots: Roots) -> dict[PciAddress, vgpu.DividedCard]:
    """The *cards* that are divided, by address, and those of which nobody tells how."""
    found = {}
    for card in cards:
        if is_divided(card, roots):
            reason = _unread(card, roots)
            found[card.address] = (
                vgpu.DividedCard({}, {}, reason) if reason else _divided(card, card.mig or ())
            )
    return found


def is_divided(card: GPU, roots: Roots) -> bool:
    """Whether *card* has instances, or is in MIG mode and so of no use as a whole"""
    if card.driver != nvml.DRIVER:
        return False
    minor = gpu_instances.gpu_minor(card.address, roots)
    return card.mig is not None or (minor is not None and gpu_instances.is_divided(minor, roots))


def _unread(card: GPU, roots: Roots) -> str | None:
    """Why it is not known of which instances the card is made, and what to do"""
    if card.mig is None:
        return (
            "the driver has MIG instances of it, and NVML does not tell what they are; see why in "
            "nova-compute's log, [gpu]nvml and [gpu]nvml_timeout"
        )
    minor = gpu_instances.gpu_minor(card.address, roots)
    there = (
        () if minor is None else gpu_instances.instances(gpu_instances.capabilities(minor, roots))
    )
    by_driver, by_nvml = {each.index for each in there}, {each.index for each in card.mig}
    if not by_driver and not by_nvml:
        return (
            "it is in MIG mode and has no compute instance; make some (nvidia-smi mig -cgi ... -C) "
            "or turn MIG mode off (nvidia-smi -mig 0)"
        )
    if by_driver != by_nvml:
        return (
            f"the driver has the MIG instances {_listed(by_driver)} of it, and NVML tells of "
            f"{_listed(by_nvml)}; it is looked at again in the next period"
        )
    for each in card.mig:
        if each.profile is None or not vgpu.is_type_id(each.profile) or _number(each) is None:
            return (
                f"NVML does not tell the profile of its MIG instance {each.index}; see what "
                "nvidia-smi -L says of it"
            )
    return None


def _listed(indices: set[str]) -> str:
    return ", ".join(sorted(indices)) or "none"


def _number(instance: MIGInstance) -> int | None:
    return slot_number(instance.gpu_instance, instance.compute_instance)


def _divided(card: GPU, layout: Iterable[MIGInstance]) -> vgpu.DividedCard:
    """:param layout: in which :func:`_unread` has found nothing"""
    numbers: dict[str, list[int]] = collections.defaultdict(list)
    facts = {}
    for each in layout:
        number = _number(each)
        if each.profile is not None and number is not None:
            numbers[each.profile].append(number)
            facts[each.profile] = each
    types = {
        profile: vgpu.VGPUType(
            profile,
            memory_mib=facts[profile].memory_mib,
            per_card=len(numbers[profile]),
            slices=facts[profile].slices,
        )
        for profile in sorted(numbers)
    }
    made = {profile: len(numbers[profile]) for profile in types}
    slots = {profile: tuple(sorted(numbers[profile])) for profile in types}
    parent = vgpu.Parent(vgpu.Kind.INSTANCE, {}, made, slots)
    return vgpu.DividedCard(types, {card.address: parent})
