# SPDX-License-Identifier: Apache-2.0
"""Privileged calls that clean a card, or a MIG instance of one, between two guests."""

from __future__ import annotations

import nova_gpu.privsep.entrypoint
import nova_gpu.privsep.vfio
from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import device, exception, model
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host import child_process, clean_command
from nova_gpu.host.container import guest_processes
from nova_gpu.host.pci import privileged_cards
from nova_gpu.host.vfio import binding, open_devices

_TOO_MANY = "raise [gpu]clean_timeout, or limit the processes of guests"


@nova_gpu.privsep.entrypoint.entrypoint
def reset(address: str) -> None:
    """Reset the GPU at *address*, as :func:`nova_gpu.host.vfio.binding.reset`."""
    card, settings = _card(model.PciAddress.parse(address)), nova_gpu.privsep.vfio.settings
    binding.reset(card, settings(CONF.gpu.clean_timeout), required=CONF.gpu.require_reset)


@nova_gpu.privsep.entrypoint.entrypoint
def reset_bus(address: str) -> None:
    """Reset the bus of the GPU at *address*, which no other device may be on."""
    card, settings = _card(model.PciAddress.parse(address)), nova_gpu.privsep.vfio.settings
    binding.reset(card, settings(CONF.gpu.clean_timeout), bus=True)


@nova_gpu.privsep.entrypoint.entrypoint
def end_processes(address: str) -> list[str]:
    """End the processes that a container left with the device open; return their descriptions.

    :param address: a GPU's address, or the slot of a MIG instance
    :raises NotCleanedYet: if a process does not end, or may have the device open, or if the search
        for the processes does not end in time: guests may have very many
    :raises NotClean: if the search fails
    """
    settings, gpu = nova_gpu.privsep.vfio.settings(CONF.gpu.clean_timeout), device.parse(address)
    card = _card(device.function(gpu))
    if not settings.roots.shows_all_processes():
        raise exception.NotClean(address, open_devices.UNSEEN, open_devices.UNSEEN_REMEDY)
    uids = guest_processes.ranges(NOVAS.libvirt.uid_maps)
    try:
        processes, left = guest_processes.end(_slot(gpu) or card, settings, uids)
    except child_process.Failed as error:
        reason = f"the search for processes that its guest left {error}"
        if isinstance(error, child_process.TimedOut):
            raise exception.NotCleanedYet(address, reason, _TOO_MANY) from error
        raise exception.NotClean(address, reason, "see which processes have it open") from error
    if left:
        reason = f"processes still have it open, or may have: {', '.join(map(str, left))}"
        raise exception.NotCleanedYet(address, reason, left[0].remedy)
    return [str(process) for process in processes]


@nova_gpu.privsep.entrypoint.entrypoint
def run_command(address: str) -> tuple[int, str]:
    """Run [gpu]clean_command for a device; return its exit status and its output.

    :raises NotClean: if it cannot be run, or does not end in time
    """
    held_device = device.parse(address)
    mode = device.mode(held_device, NOVAS.libvirt.virt_type)
    card = _card(device.function(held_device))
    command, timeout_s = CONF.gpu.clean_command, CONF.gpu.clean_timeout
    try:
        return clean_command.run(command, card, mode, timeout_s, slot=_slot(held_device))
    except exception.InvalidOption as error:
        remedy = "correct the option, and clean the card"
        raise exception.NotClean(address, str(error), remedy) from error
    except child_process.Failed as error:
        reason = f"[gpu]clean_command {error}"
        raise exception.NotClean(address, reason, "see what is wrong with the card") from error


def _slot(gpu: device.Device) -> Slot | None:
    return next(iter(device.slots([gpu])), None)


def _card(address: model.PciAddress) -> model.GPU:
    card = privileged_cards.card(address, CONF.gpu)
    if card is None:
        raise exception.NotClean(str(address), privileged_cards.REASON, privileged_cards.REMEDY)
    return card
