# SPDX-License-Identifier: Apache-2.0
"""The character devices of a card or MIG instance, and the processes that have them open.

While a process has one open, the driver does not release the card.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping

from nova_gpu.core import model
from nova_gpu.core.printable import printable
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host import nodes
from nova_gpu.host.pci import discovery, sysfs
from nova_gpu.host.processes import Holder, Number
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import rebinder
from nova_gpu.host.vfio.rebinder import Means

# The longest part of a process's command line that is printed, and the most processes that are
_MOST, _MOST_HOLDERS = 80, 5

# Subsystems whose devices the kernel can take away from processes that have them open. Every
# desktop daemon has the inputs open that report a plug in a card's sound output.
_TAKEN_AWAY = frozenset({"input", "usb", "block"})

# If proc shows only the processes of a container
UNSEEN = (
    "nova-compute cannot see whether a process of the host has it open: it runs in a PID namespace "
    "of its own"
)
UNSEEN_REMEDY = "give nova-compute's container the host's PID namespace (pid_mode: host)"

IN_USE = "it is in use by processes of the host"
# If the kernel does not let root look into them
UNREAD = "a process of the host may have it open, because what that has open cannot be read"
UNREAD_REMEDY = (
    "let nova-compute's privileged process have the rights of root that it lacks (CAP_SYS_PTRACE "
    "and CAP_SYS_ADMIN in a container), or end a process that hangs"
)


def numbers(gpu: model.GPU, roots: Roots) -> frozenset[Number]:
    """Return the numbers of all character devices of the card's functions, VFIO's included."""
    # sysfs lacks the devices of NVIDIA's driver.
    devices = set(_numbers(nodes.card_nodes(gpu, roots), roots))
    for address in gpu.functions:
        devices.update(_below(os.path.realpath(sysfs.device(address, roots))))
    # The IOMMU group's own device is elsewhere: drivers/vfio/group.c
    number = _number(f"{roots.sysfs}/class/vfio/{gpu.iommu_group}")
    return frozenset(devices | {number} if number else devices)


def of_instance(slot: Slot, roots: Roots) -> frozenset[Number]:
    """Return the numbers of the devices that give access to no MIG instance but that at *slot*.

    Return an empty set if there is no such instance. The device of the card is left out, and that
    of a GPU instance with several compute instances: other guests may have these open.
    """
    return frozenset(_numbers(nodes.own_instance_nodes(slot, roots), roots))


def _numbers(paths: Iterable[str], roots: Roots) -> Iterator[Number]:
    for node in paths:
        with contextlib.suppress(FileNotFoundError):
            device = nodes.on_host(node, roots).stat().st_rdev
            if device:
                yield os.major(device), os.minor(device)


def _below(folder: str) -> Iterator[Number]:
    for path, _, files in os.walk(folder):
        if "dev" in files and sysfs.link(path, "subsystem") not in _TAKEN_AWAY:
            number = _number(path)
            if number:
                yield number


def _number(folder: str) -> Number | None:
    try:
        major, _, minor = sysfs.attribute(folder, "dev").partition(":")
        return int(major), int(minor)
    except (OSError, ValueError):
        return None


def in_use(
    addresses: Iterable[model.PciAddress], means: Means
) -> Mapping[model.PciAddress, list[Holder]]:
    """Return the processes of the host that have one of these cards open, by card.

    A process that cannot be looked into may have each of them open.

    :raises Failed: if the search for them fails
    """
    gpus = discovery.cards_at(addresses, means.roots)
    devices_by_card = {gpu.address: numbers(gpu, means.roots) for gpu in gpus}
    devices = {device for devices in devices_by_card.values() for device in devices}
    if not devices:
        return {}
    answer = rebinder.run({"devices": sorted(devices)}, means)
    who: dict[model.PciAddress, list[Holder]] = {}
    for holder in answer["holders"]:
        for address, own in devices_by_card.items():
            if own and (holder[2] is None or not own.isdisjoint(map(tuple, holder[2]))):
                who.setdefault(address, []).append(holder)
    return who


def reason(holders: Iterable[Holder]) -> tuple[str, str]:
    """Return why a card with these *holders* is not given to guests, and the remedy."""
    seen = any(devices is not None for _, _, devices in holders)
    return (IN_USE, "end that first") if seen else (UNREAD, UNREAD_REMEDY)


def as_text(holders: Iterable[Holder]) -> str:
    """Return the commands and pids of *holders* as one text, the first few of many.

    It is made printable, because processes choose their own names, those of containers too.
    """
    texts = []
    for pid, command, devices in holders:
        unread = ", which cannot be looked into" if devices is None else ""
        texts.append(f"{printable(command, _MOST)} (pid {pid}{unread})")
    more = [f"{len(texts) - _MOST_HOLDERS} more"] if len(texts) > _MOST_HOLDERS else []
    return ", ".join(texts[:_MOST_HOLDERS] + more)
