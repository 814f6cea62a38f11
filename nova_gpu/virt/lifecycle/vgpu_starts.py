# SPDX-License-Identifier: Apache-2.0
"""The vGPUs of a guest that starts: looked up, and compared with its flavor.

They are the second half of :mod:`nova_gpu.virt.lifecycle.starts`, which holds them with the whole
cards.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from nova import objects

from nova_gpu.core import device, exception, names
from nova_gpu.core.flavor import compare as comparison
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_group import VGPUGroup
from nova_gpu.virt.delivery import guest_vgpus

if TYPE_CHECKING:
    from nova_gpu.virt.host_gpus import HostGPUs

Held = list[tuple[VGPUGroup, Slot]]


def held(gpus: HostGPUs, instance: objects.Instance) -> Held:
    """What the instance holds of this host, by slot.

    :raises DeviceUnavailable: where one of them is not here, or cannot be given
    """
    if not gpus.vgpus or not _has_any(instance):
        return []
    gpus.ask_for_providers()
    return gpus.vgpus.held(instance.resources)


def _has_any(instance: objects.Instance) -> bool:
    """Whether it has vGPUs of any host: of others nobody is asked about it."""
    resources = instance.resources or ()
    return any(each.resource_class == names.VGPU_RESOURCE_CLASS for each in resources)


def compare(asked: FlavorRequest, found: Held, *, given: bool) -> None:
    """:param given: whether the instance is given them now, and did not have them before
    :raises RequestMismatch: where the flavor asks for other vGPUs than the instance holds
    """
    reason = comparison.vgpu_mismatch(asked, [group.facts for group, _ in found])
    if asked.vgpus and reason is None and given:
        reason = comparison.other_vgpu_facts(asked.vgpus, [group for group, _ in found])
    if reason:
        raise exception.RequestMismatch(
            reason,
            "is GPUFilter in [filter_scheduler]enabled_filters of nova-scheduler, and was its "
            "flavor changed to one with vGPUs by a resize?",
        )


# What Nova's own driver is to leave alone


def without_ours(gpus: HostGPUs, allocations: Any) -> Any:
    """*allocations* of an instance, but for those of this host's groups of vGPUs"""
    has_any = any(
        names.VGPU_RESOURCE_CLASS in each["resources"] for each in (allocations or {}).values()
    )
    if not has_any or not gpus.vgpus:
        return allocations
    gpus.ask_for_providers()
    ours = set(gpus.vgpus.stock.provider_uuids.values())
    return {uuid: allocations[uuid] for uuid in allocations if uuid not in ours}


def of_others(
    gpus: HostGPUs, instance: objects.Instance | None, assigned: dict[str, str]
) -> dict[str, str]:
    """The mediated devices of the *instance* that were not made by us: Nova renders these.

    Of all instances all are told, as it is asked then which are nobody's.
    """
    if instance is None or not assigned or not gpus.vgpus:
        return assigned
    ours = guest_vgpus.uuids(instance.uuid, _known(gpus, instance))
    return {uuid: guest for uuid, guest in assigned.items() if uuid not in ours}


def _known(gpus: HostGPUs, instance: objects.Instance) -> Collection[Slot]:
    """What the instance has, and what its domain names or named until it was taken away"""
    gpus.ask_for_providers()
    named = gpus.named_by(instance.uuid)
    return {*gpus.vgpus.slots(instance.resources), *device.slots(named)}
