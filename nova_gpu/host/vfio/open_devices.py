# SPDX-License-Identifier: Apache-2.0
"""The character devices of a card or MIG instance, and the processes that have them open.

While a process has one open, the driver does not release the card.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nova_gpu.core import model
from nova_gpu.core.printable import printable
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host import child, nodes
from nova_gpu.host.pci import discovery, sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import rebinder
from nova_gpu.host.vfio.rebinder import Means

LOG = logging.getLogger(__name__)

# The longest part of a process's command line that is printed
_MOST = 80

# Subsystems whose devices the kernel can take away from processes that have them open. Every
# desktop daemon has the inputs open that report a plug in a card's sound output.
_TAKEN_AWAY = frozenset({"input", "usb", "block"})

Number = tuple[int, int]  # major, minor

# If proc shows only the processes of a container
UNSEEN = (
    "nova-compute cannot see whether a process of the host has it open: it runs in a PID namespace "
    "of its own"
)
UNSEEN_REMEDY = "give nova-compute's container the host's PID namespace (pid_mode: host)"


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


def in_use(addresses: Iterable[model.PciAddress], means: Means) -> Mapping[model.PciAddress, str]:
    """Return the processes of the host that have one of these cards open, as text by card.

    Return an empty mapping if it is unknown, because
    :func:`nova_gpu.host.vfio.binding.give_to_guests` checks again.
    """
    gpus = discovery.cards_at(addresses, means.roots)
    devices_by_card = {gpu.address: numbers(gpu, means.roots) for gpu in gpus}
    devices = {device for devices in devices_by_card.values() for device in devices}
    if not devices:
        return {}
    try:
        answer = rebinder.look({"devices": sorted(devices)}, means)
    except child.Failed as error:
        LOG.warning(
            "Cannot tell whether a process has a GPU open, so it is checked again when a guest "
            "starts: the search %s",
            error,
        )
        return {}
    who: dict[model.PciAddress, list[Any]] = {}
    for holder in answer["holders"]:
        for address, own in devices_by_card.items():
            if not own.isdisjoint(map(tuple, holder[2])):
                who.setdefault(address, []).append(holder)
    return {address: as_text(holders) for address, holders in who.items()}


def as_text(holders: Iterable[Any]) -> str:
    """Return the commands and pids of *holders*, processes from the rebind script, as one text.

    It is made printable, because processes choose their own names, those of containers too.
    """
    return ", ".join(f"{printable(command, _MOST)} (pid {pid})" for pid, command, _ in holders)
