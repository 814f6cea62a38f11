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
    """Make the vGPU that the instance has at *slot*; it may exist already.

    :raises InvalidValue: if *slot* or *instance_uuid* is invalid
    :raises DeviceUnavailable: if it cannot be made now
    """
    place = vgpu.Slot.parse(slot)
    uuid = vgpu.device_uuid(instance_uuid, place)
    _refuse_others(privileged_cards.card_of(place.parent, CONF.gpu), place.parent)
    slots.make(place, uuid, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def remove(slot: str, instance_uuid: str) -> None:
    """Remove the vGPU that the instance had at *slot*, and no other.

    It may be gone already, and the [gpu] options need not select its card any more.

    :raises InvalidValue: if *slot* or *instance_uuid* is invalid
    :raises NotClean: if it still exists, or that is unknown
    """
    place = vgpu.Slot.parse(slot)
    uuid = vgpu.device_uuid(instance_uuid, place)
    slots.remove(place, uuid, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def types(addresses: list[str]) -> str:
    """Return NVML's answer about the vGPU types of the cards at *addresses*.

    :func:`nova_gpu.host.nvidia.nvml_vgpus.parse` parses it.

    :raises InvalidPciAddress: if one of *addresses* is not a PCI address
    """
    cards = [model.PciAddress.parse(address) for address in addresses]
    return nvml_vgpus.ask(cards, CONF.gpu.nvml_timeout)


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def enable_functions(address: str, number: int) -> None:
    """Enable *number* virtual functions of the card at *address*; it may have them already.

    :raises InvalidPciAddress: if *address* is not a PCI address
    :raises DeviceUnavailable: if it cannot have them now
    """
    card = model.PciAddress.parse(address)
    wanted = virtual_functions.parse(CONF.gpu.virtual_functions)
    _refuse_unsaid(_refuse_others(privileged_cards.card(card, CONF.gpu), card), wanted, number)
    virtual_functions.enable(card, number, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def make_mig_instances(address: str, profile: str) -> int:
    """Divide the card at *address* into MIG instances.

    Return how many were made, 0 if the card is divided already.

    :raises InvalidPciAddress: if *address* is not a PCI address
    :raises DeviceUnavailable: if it cannot be divided now
    """
    card = model.PciAddress.parse(address)
    wanted = mig_layout.parse_profiles(CONF.gpu.mig_profile)
    _refuse_unsaid(_refuse_others(privileged_cards.card(card, CONF.gpu), card), wanted, profile)
    return mig_layout.make(card, profile, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


def _refuse_others(gpu: model.GPU | None, address: model.PciAddress) -> model.GPU:
    """Return *gpu*, and refuse an address without a card that the [gpu] options select.

    :raises DeviceUnavailable: if *gpu* is ``None``
    """
    if gpu is None:
        raise exception.DeviceUnavailable(
            str(address), privileged_cards.REASON, privileged_cards.REMEDY
        )
    return gpu


def _refuse_unsaid(card: model.GPU, wanted: Mapping[str, object], value: object) -> None:
    """Refuse a division that the option does not request for the card.

    :param wanted: the values of the option, by card
    :raises DeviceUnavailable: if *value* is not that of the card
    """
    if (statement := selection.value_of(card, wanted)) != value:
        raise exception.DeviceUnavailable(
            str(card.address),
            f"nova-compute asks for {value} of it, but the option has {statement or 'nothing'}",
            "restart nova-compute after changing an option",
        )
