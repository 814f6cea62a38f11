# SPDX-License-Identifier: Apache-2.0
"""AMD's cards, and the parts that one is split into, as the kernel's KFD driver shows them.

Source: the kernel's drivers/gpu/drm/amd/amdkfd, kfd_topology.c.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping

from nova_gpu.core import model
from nova_gpu.host.pci import sysfs

_TOPOLOGY = "class/kfd/kfd/topology/nodes"


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """``address`` is the card's, ``None`` for a CPU; ``render_minor`` that of the node in /dev/dri
    by which this part of the card is used, ``links`` the folders of what leads elsewhere."""

    address: model.PciAddress | None
    render_minor: int | None
    links: tuple[str, ...]


def nodes(root: pathlib.Path) -> Mapping[str, Node]:
    """The nodes of KFD's topology by number, below *root* of sysfs; what cannot be read is none."""
    folder = f"{root}/{_TOPOLOGY}"
    told = {name: properties(f"{folder}/{name}") for name in sysfs.names(folder)}
    cards = _cards(root, told.values())
    found = {}
    for name, each in told.items():
        place = _place(each)
        ends = f"{folder}/{name}/io_links"
        links = tuple(f"{ends}/{each}" for each in sysfs.names(ends))
        address = None if place is None else cards[each.get("unique_id"), place]
        found[name] = Node(address, each.get("drm_render_minor") or None, links)
    return found


def _place(told: Mapping[str, int]) -> model.PciAddress | None:
    """What the low sixteen bits of location_id say: bus, slot and function; ``None`` for a CPU"""
    location = told.get("location_id", 0) & 0xFFFF
    if not told.get("simd_count") or not location:
        return None
    bus, devfn = location >> 8, location & 0xFF
    return model.PciAddress(told.get("domain", 0), bus, devfn >> 3, devfn & 7)


def _cards(
    root: pathlib.Path, told: Iterable[Mapping[str, int]]
) -> Mapping[tuple[int | None, model.PciAddress], model.PciAddress]:
    """The card's address by its serial number and each address that one of its parts says.

    The number of a part is in location_id too: in the high bits, or, in most releases, in those of
    the function (tests/recorded/kfd.yaml, 1280 to 1287), which then is none that the bus has. All
    parts of a card have its serial number, where the kernel knows that (0: it does not).
    """
    places = {(each.get("unique_id"), at) for each in told if (at := _place(each)) is not None}
    devices = f"{root}/bus/pci/devices"
    found = {}
    for serial, place in places:
        whole = dataclasses.replace(place, function=0)
        parts = [
            at
            for of, at in places
            if of == serial and serial and dataclasses.replace(at, function=0) == whole
        ]
        is_none = not os.path.exists(f"{devices}/{place}") and os.path.exists(f"{devices}/{whole}")
        found[serial, place] = min(parts) if parts else whole if is_none else place
    return found


def properties(folder: str) -> Mapping[str, int]:
    """The numbers in its file of that name; nothing where it cannot be read"""
    try:
        lines = sysfs.attribute(folder, "properties").splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
