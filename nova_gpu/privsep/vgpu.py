# SPDX-License-Identifier: Apache-2.0
"""Privileged calls that make and remove vGPUs, virtual functions and MIG instances.

What the options do not say of a card is refused. A refusal, or a step that fails, raises
DeviceUnavailable; a reading that takes too long :class:`nova_gpu.host.child_process.Failed`.
"""

from __future__ import annotations

from collections.abc import Mapping

import nova_gpu.privsep.entrypoint
from nova_gpu.conf import CONF
from nova_gpu.core import exception, model, names
from nova_gpu.core.flavor import parsers
from nova_gpu.core.vgpu import vgpu
from nova_gpu.host import child_process, clean_command
from nova_gpu.host.mig import mig_layout
from nova_gpu.host.nvidia import nvml_vgpus, vgpu_manager
from nova_gpu.host.pci import privileged_cards, selection
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import gim, preparation, slots, virtual_functions

# A guest's failed start waits for the journal.
_JOURNAL_TIMEOUT_S = 5.0


@nova_gpu.privsep.entrypoint.entrypoint
def make(slot: str, instance_uuid: str) -> None:
    """Make the vGPU of an instance at *slot*, unless it exists already."""
    place = vgpu.Slot.parse(slot)
    uuid = vgpu.device_uuid(instance_uuid, place)
    if privileged_cards.card_of(place.parent, CONF.gpu) is None:
        raise _unselected(place.parent)
    slots.make(place, uuid, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


@nova_gpu.privsep.entrypoint.entrypoint
def set_params(slot: str, instance_uuid: str, text: str) -> None:
    """Give the vGPU of an instance at *slot* the parameters *text* instead of its own.

    :raises InvalidExtraSpec: if *text* is no list of parameters
    """
    place = vgpu.Slot.parse(slot)
    params = parsers.parse_params(names.VGPU_PARAMS, text) if text else ""
    for name in (param.partition("=")[0] for param in params.split(",") if params):
        if name not in CONF.gpu.vgpu_params:
            raise exception.DeviceUnavailable(
                str(place.parent),
                f"{slot}: [gpu]vgpu_params does not permit {name}",
                "name it there, or take it out of the flavor",
            )
    uuid = vgpu.device_uuid(instance_uuid, place)
    slots.set_params(place, uuid, params, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


@nova_gpu.privsep.entrypoint.entrypoint
def remove(slot: str, instance_uuid: str) -> None:
    """Remove the vGPU of an instance at *slot*, unless it is gone already.

    A vGPU of another instance stays. The [gpu] options need not select the card any more.

    :raises NotClean: if it still exists, or that is unknown
    """
    place = vgpu.Slot.parse(slot)
    uuid = vgpu.device_uuid(instance_uuid, place)
    slots.remove(place, uuid, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


@nova_gpu.privsep.entrypoint.entrypoint
def types(addresses: list[str]) -> str:
    """Return NVML's answer about vGPU types, for :func:`nova_gpu.host.nvidia.nvml_vgpus.parse`."""
    cards = [model.PciAddress.parse(address) for address in addresses]
    return nvml_vgpus.ask(cards, CONF.gpu.nvml_timeout)


@nova_gpu.privsep.entrypoint.entrypoint
def partition_modes(addresses: list[str]) -> dict[str, str]:
    """Return the partition modes of AMD's cards at *addresses*, by address, where known."""
    cards = [model.PciAddress.parse(address) for address in addresses]
    modes = gim.modes(cards, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)
    return {str(card): mode for card, mode in modes.items()}


@nova_gpu.privsep.entrypoint.entrypoint
def manager_errors(since: float) -> list[str]:
    """Return the last errors of NVIDIA's vGPU manager since that time, in seconds of Unix."""
    return vgpu_manager.errors(float(since), _JOURNAL_TIMEOUT_S)


@nova_gpu.privsep.entrypoint.entrypoint
def enable_functions(address: str, number: int) -> None:
    """Enable *number* virtual functions of the card at *address*, unless it has them already."""
    card = model.PciAddress.parse(address)
    _refuse_unsaid(card, virtual_functions.parse(CONF.gpu.virtual_functions), number)
    virtual_functions.enable(card, number, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


@nova_gpu.privsep.entrypoint.entrypoint
def begin_preparation(address: str) -> None:
    """Set what the options want of the card at *address* before its functions are enabled."""
    card = _to_prepare(address)
    wanted = preparation.of(card, CONF.gpu)
    preparation.begin(card, wanted, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


@nova_gpu.privsep.entrypoint.entrypoint
def finish_preparation(address: str) -> str:
    """Set what the options want of the card at *address*; return [gpu]divide_command's output.

    :raises DeviceUnavailable: if ``[gpu]virtual_functions`` does not name the card, a setting
        fails, or the command fails or does not end in time
    :raises InvalidOption: if users other than root can change the program
    """
    card = _to_prepare(address)
    wanted = preparation.of(card, CONF.gpu)
    preparation.finish(card, wanted, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)
    command, option = CONF.gpu.divide_command, "divide_command"
    if not command:
        return ""
    try:
        status, output = clean_command.run(
            command, card, model.DeliveryMode.VGPU, CONF.gpu.bind_timeout, option=option
        )
        reason = f"ended with {status}: {output.strip()[-200:]}" if status else None
    except child_process.Failed as error:
        reason = str(error)
    if reason:
        raise exception.DeviceUnavailable(
            address, f"[gpu]{option} {reason}", "correct that, and start nova-compute again"
        )
    return output


def _to_prepare(address: str) -> model.GPU:
    place = model.PciAddress.parse(address)
    card = privileged_cards.card(place, CONF.gpu)
    values = virtual_functions.parse(CONF.gpu.virtual_functions)
    if card is None or selection.value_of(card, values) is None:
        raise _unselected(place)
    return card


@nova_gpu.privsep.entrypoint.entrypoint
def make_mig_instances(address: str, profile: str) -> int:
    """Divide the card at *address* into as many MIG instances of *profile* as fit.

    Return how many were made, 0 if the card is divided already.
    """
    card = model.PciAddress.parse(address)
    _refuse_unsaid(card, mig_layout.parse_profiles(CONF.gpu.mig_profile), profile)
    return mig_layout.make(card, profile, Roots.of(CONF.gpu), CONF.gpu.bind_timeout)


@nova_gpu.privsep.entrypoint.entrypoint
def restore_compute_instances(address: str, numbers: list[int]) -> int:
    """Make a compute instance in those GPU instances of the card at *address* that have none.

    Return how many were made.
    """
    card = _to_prepare(address)
    if preparation.of(card, CONF.gpu).mig_profile is None:
        raise _unselected(card.address)
    return mig_layout.restore(card.address, map(int, numbers), CONF.gpu.bind_timeout)


def _unselected(address: model.PciAddress) -> exception.DeviceUnavailable:
    return exception.DeviceUnavailable(
        str(address), privileged_cards.REASON, privileged_cards.REMEDY
    )


def _refuse_unsaid(address: model.PciAddress, wanted: Mapping[str, object], value: object) -> None:
    """Refuse to divide a card otherwise than the option says.

    :raises DeviceUnavailable: if the option has another value for the card, or none, or the [gpu]
        options do not select it
    """
    card = privileged_cards.card(address, CONF.gpu)
    if card is None:
        raise _unselected(address)
    if (statement := selection.value_of(card, wanted)) != value:
        raise exception.DeviceUnavailable(
            str(address),
            f"nova-compute requests {value} for it, but the option has {statement or 'nothing'}",
            "restart nova-compute after changing an option",
        )
