# SPDX-License-Identifier: Apache-2.0
"""Where there are vGPUs that nobody has, and none where somebody has one."""

from __future__ import annotations

from collections.abc import Iterator

from nova_gpu.core.device import Device
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.verify.sources import Difference, Kind, Truths


def compare(truths: Truths) -> Iterator[Difference]:
    """Nothing while one of those who could have it does not say."""
    if truths.guests is None or truths.instances is None or truths.made is None:
        return
    yield from _missing(truths)
    yield from _left(truths)


def is_here(device: Device, truths: Truths) -> bool:
    """Whether the host has it, or what a vGPU is made at"""
    if isinstance(device, Slot):
        return device.parent in truths.functions
    return device in (truths.cards or ())


def _missing(truths: Truths) -> Iterator[Difference]:
    """What a domain names of an instance that has no task under way"""
    for uuid, guest in (truths.guests or {}).items():
        instance = (truths.instances or {}).get(uuid)
        if instance is None or not instance.settled:
            continue
        named = {each for each in guest.cards if isinstance(each, Slot)}
        for slot in sorted(named - (truths.made or {}).get(uuid, frozenset())):
            yield Difference(
                Kind.VGPU_MISSING,
                str(slot),
                f"vGPU {slot} of instance {uuid} is in its domain and not on the host",
                f"openstack server reboot --hard {uuid} makes it again (of a stopped one: "
                "start); a MIG instance you make again before that",
            )


def _left(truths: Truths) -> Iterator[Difference]:
    for uuid, slots in (truths.made or {}).items():
        instance, guest = (truths.instances or {}).get(uuid), (truths.guests or {}).get(uuid)
        if (instance and not instance.settled) or uuid in truths.returning:
            continue
        has = (instance.cards if instance else frozenset()) | (
            guest.cards if guest else frozenset()
        )
        for slot in sorted(slots - has):
            yield Difference(
                Kind.VGPU_LEFT,
                str(slot),
                f"vGPU {slot} was made for {uuid}, which has it no more",
                "nova-compute removes it within a period; see its log, and whether it runs",
            )
