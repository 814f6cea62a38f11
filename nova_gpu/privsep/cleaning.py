# SPDX-License-Identifier: Apache-2.0
"""Privileged calls that clean a card, or a MIG instance of one, between two guests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import nova.privsep

import nova_gpu.privsep.vfio
from nova_gpu.conf import CONF
from nova_gpu.core import device, exception, model
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host import child, clean_command
from nova_gpu.host.container import guest_processes
from nova_gpu.host.pci import privileged_cards
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import card_reset, open_devices, rebinder


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def reset(address: str) -> None:
    """Reset every function of the GPU at *address*, which must be bound to vfio-pci.

    The GPU must not be in use by a guest.

    :raises InvalidPciAddress: if *address* is not a PCI address
    :raises NotClean: if it is not reset, or does not answer afterwards
    """
    means = _means()
    card = _card(model.PciAddress.parse(address))
    card_reset.reset(card, means, required=CONF.gpu.require_reset)


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def end_processes(address: str) -> list[str]:
    """End the processes that a container left with the device open; return their descriptions.

    :param address: a GPU's address, or the slot of a MIG instance
    :raises InvalidValue: if *address* is neither
    :raises NotClean: if a process does not end
    """
    means, target = _means(), _device(address)
    if not means.roots.shows_all_processes():
        raise exception.NotClean(address, open_devices.UNSEEN, open_devices.UNSEEN_REMEDY)
    uids = guest_processes.ranges(CONF.libvirt.uid_maps)
    with _search(address):
        processes, left = guest_processes.end(target, means, uids)
    _refuse(address, left)
    return [str(process) for process in processes]


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def run_command(address: str) -> tuple[int, str]:
    """Run [gpu]clean_command for a device; return its exit status and its output.

    :param address: a GPU's address, or the slot of a MIG instance
    :raises InvalidValue: if *address* is neither
    :raises NotClean: if it cannot be run, or does not end in time
    """
    gpu = device.parse(address)
    slot = next(iter(device.slots([gpu])), None)
    mode = device.mode(gpu, CONF.libvirt.virt_type)
    card = _card(device.function(gpu))
    command, timeout_s = CONF.gpu.clean_command, CONF.gpu.clean_timeout
    try:
        return clean_command.run(command, card, mode, timeout_s, slot=slot)
    except exception.InvalidOption as error:
        remedy = "correct the option, and clean the card"
        raise exception.NotClean(address, str(error), remedy) from error
    except child.Failed as error:
        reason = f"[gpu]clean_command {error}"
        raise exception.NotClean(address, reason, "see what is wrong with the card") from error


def _device(address: str) -> model.GPU | Slot:
    """Return the slot that *address* denotes, or the card at this PCI address.

    :raises InvalidValue: if *address* is neither a slot nor a PCI address
    :raises NotClean: if the [gpu] options do not select its card
    """
    gpu = device.parse(address)
    card = _card(device.function(gpu))
    return next(iter(device.slots([gpu])), card)


@contextlib.contextmanager
def _search(address: str) -> Iterator[None]:
    """Turn a failure of the child process that finds and ends a guest's processes into NotClean.

    :raises NotClean: if the child process fails
    """
    try:
        yield
    except child.Failed as error:
        reason = f"the search for processes that its guest left {error}"
        raise exception.NotClean(address, reason, "see which processes have it open") from error


def _refuse(address: str, left: Iterable[object]) -> None:
    """Refuse a device that processes of its guest still have open.

    :param left: these processes
    :raises NotClean: if there are any
    """
    if named := ", ".join(map(str, left)):
        reason = f"processes of its guest do not end: {named}"
        remedy = "see the kernel's log for what they wait for; the host may need a boot"
        raise exception.NotClean(address, reason, remedy)


def _means() -> rebinder.Means:
    return rebinder.Means(
        Roots.of(CONF.gpu), nova_gpu.privsep.vfio.records(), CONF.gpu.clean_timeout
    )


def _card(address: model.PciAddress) -> model.GPU:
    """Return the card at *address*.

    :raises NotClean: if there is no card that the [gpu] options select
    """
    card = privileged_cards.card(address, CONF.gpu)
    if card is None:
        raise exception.NotClean(str(address), privileged_cards.REASON, privileged_cards.REMEDY)
    return card
