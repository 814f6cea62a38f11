# SPDX-License-Identifier: Apache-2.0
"""Privileged calls that make and remove vGPUs, virtual functions and MIG instances."""

from __future__ import annotations

from collections.abc import Mapping

import nova.privsep

from nova_gpu.conf import CONF
from nova_gpu.core import exception, model
from nova_gpu.core.vgpu import vgpu
from nova_gpu.host.mig import mig_layout
from nova_gpu.host.nvidia import nvml_vgpus
from nova_gpu.host.pci import privileged_cards, selection
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import slots, virtual_functions


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def make(slot: str, instance_uuid: str) -> None:
    """Make the vGPU of an instance at *slot*, unless it exists already.

    :raises InvalidValue: if *slot* or *instance_uuid* is invalid
    :raises DeviceUnavailable: if it cannot be made now
    """
    place = vgpu.Slot.parse(slot)
    uuid = vgpu.device_uuid(instance_uuid, place)
    _refuse_others(privileged_cards.card_of(place.parent, CONF.gpu), place.parent)
    slots.make(place, uuid, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def remove(slot: str, instance_uuid: str) -> None:
    """Remove the vGPU of an instance at *slot*, unless it is gone already.

    A vGPU of another instance stays. The [gpu] options need not select the card any more.

    :raises InvalidValue: if *slot* or *instance_uuid* is invalid
    :raises NotClean: if it still exists, or that is unknown
    """
    place = vgpu.Slot.parse(slot)
    uuid = vgpu.device_uuid(instance_uuid, place)
    slots.remove(place, uuid, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def types(addresses: list[str]) -> str:
    """Return NVML's answer about the vGPU types of the cards at *addresses*, as JSON.

    :func:`nova_gpu.host.nvidia.nvml_vgpus.parse` parses the answer.

    :raises InvalidPciAddress: if one of *addresses* is not a PCI address
    """
    cards = [model.PciAddress.parse(address) for address in addresses]
    return nvml_vgpus.ask(cards, CONF.gpu.nvml_timeout)


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def enable_functions(address: str, number: int) -> None:
    """Enable *number* virtual functions of the card at *address*, unless it has them already.

    :raises InvalidPciAddress: if *address* is not a PCI address
    :raises DeviceUnavailable: if *number* is not that of ``[gpu]virtual_functions`` for the card,
        or the functions cannot be enabled now
    """
    card = model.PciAddress.parse(address)
    wanted = virtual_functions.parse(CONF.gpu.virtual_functions)
    _refuse_unsaid(_refuse_others(privileged_cards.card(card, CONF.gpu), card), wanted, number)
    virtual_functions.enable(card, number, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def make_mig_instances(address: str, profile: str) -> int:
    """Divide the card at *address* into as many MIG instances of *profile* as fit.

    Return how many were made, 0 if the card is divided already.

    :raises InvalidPciAddress: if *address* is not a PCI address
    :raises DeviceUnavailable: if *profile* is not that of ``[gpu]mig_profile`` for the card, or the
        card cannot be divided now
    """
    card = model.PciAddress.parse(address)
    wanted = mig_layout.parse_profiles(CONF.gpu.mig_profile)
    _refuse_unsaid(_refuse_others(privileged_cards.card(card, CONF.gpu), card), wanted, profile)
    return mig_layout.make(card, profile, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


def _refuse_others(gpu: model.GPU | None, address: model.PciAddress) -> model.GPU:
    """Return *gpu*; refuse ``None``, which means that the [gpu] options select no such card.

    :param address: the address of the card, for the error
    :raises DeviceUnavailable: if *gpu* is ``None``
    """
    if gpu is None:
        raise exception.DeviceUnavailable(
            str(address), privileged_cards.REASON, privileged_cards.REMEDY
        )
    return gpu


def _refuse_unsaid(card: model.GPU, wanted: Mapping[str, object], value: object) -> None:
    """Refuse to divide a card otherwise than the option says.

    :param wanted: the option's values, by address and product
    :param value: the value that nova-compute requests
    :raises DeviceUnavailable: if the option has another value for *card*, or none
    """
    if (statement := selection.value_of(card, wanted)) != value:
        raise exception.DeviceUnavailable(
            str(card.address),
            f"nova-compute requests {value} for it, but the option has {statement or 'nothing'}",
            "restart nova-compute after changing an option",
        )
