# SPDX-License-Identifier: Apache-2.0
"""The character devices of a card: who has one open keeps its driver from letting go of it."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

from nova_gpu.core import model
from nova_gpu.host import nodes, passthrough, sysfs, vfio
from nova_gpu.host.roots import Roots

# Subsystems whose devices can be taken away from who has them open. Every desktop daemon has the
# inputs open that tell of a plug in a card's sound output.
_TAKEN_AWAY = frozenset({"input", "usb", "block"})

Number = tuple[int, int]  # major, minor


def numbers(gpu: model.GPU, roots: Roots) -> frozenset[Number]:
    """The devices of all functions of the card, with those that VFIO made of it."""
    found = set(_nodes(gpu, roots))
    for address in passthrough.functions(gpu):
        device = vfio.device(address, roots)
        found |= set(_below(os.path.realpath(device)))
    # The group's own device is elsewhere: drivers/vfio/group.c
    number = _number(f"{roots.sysfs}/class/vfio/{gpu.iommu_group}")
    return frozenset(found | {number} if number else found)


def _nodes(gpu: model.GPU, roots: Roots) -> Iterator[Number]:
    """Those that the driver does not show in sysfs: NVIDIA's"""
    for node in nodes.card_nodes(gpu, roots):
        with contextlib.suppress(FileNotFoundError):
            device = pathlib.Path(nodes.on_host(node, roots)).stat().st_rdev
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
