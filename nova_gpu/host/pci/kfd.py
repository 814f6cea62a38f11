# SPDX-License-Identifier: Apache-2.0
"""AMD's cards, and the partitions of a partitioned card, as the kernel's KFD driver shows them.

A card in a compute partition mode (CPX, DPX ...) has a render node for each partition. That of the
first partition is the one of the card's PCI function; the others belong to platform devices, and
KFD reports whose they are. A guest that gets only the first node has only a part of the card's
compute, and with NPS2 or NPS4 only a part of its memory.

Source: the kernel's drivers/gpu/drm/amd, amdkfd/kfd_topology.c, amdgpu/amdgpu_gfx.c
(current_compute_partition) and amdxcp/amdgpu_xcp_drv.c (``amdgpu_xcp_%d``, before Linux 6.10
``amdgpu_xcp.%d``).
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping

from nova_gpu.core import model
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

_TOPOLOGY = "class/kfd/kfd/topology/nodes"
_WHOLE = "SPX"
# The number of partitions by mode; for CPX it depends on the card, and is more than one.
_PARTS = {"DPX": 2, "TPX": 3, "QPX": 4}


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A node of KFD's topology: a CPU, a card, or a partition of a card.

    ``address`` is the card's, ``None`` for a CPU. ``render_minor`` is the minor number of the
    render node of this partition in /dev/dri; ``links`` are the sysfs folders of the node's links
    to other nodes.
    """

    address: model.PciAddress | None
    render_minor: int | None
    links: tuple[str, ...]


def nodes(root: pathlib.Path) -> Mapping[str, Node]:
    """Return the nodes of KFD's topology by number, which is a text. *root* is that of sysfs.

    A node that cannot be read looks like a CPU.
    """
    folder = f"{root}/{_TOPOLOGY}"
    paths = {name: properties(f"{folder}/{name}") for name in sysfs.names(folder)}
    cards = _cards(root, paths.values())
    by_address = {}
    for name, item in paths.items():
        place = _place(item)
        ends = f"{folder}/{name}/io_links"
        links = tuple(f"{ends}/{name}" for name in sysfs.names(ends))
        address = None if place is None else cards[item.get("unique_id"), place]
        by_address[name] = Node(address, item.get("drm_render_minor") or None, links)
    return by_address


def _place(node: Mapping[str, int]) -> model.PciAddress | None:
    """Return the address that a node reports, maybe that of a partition; ``None`` for a CPU."""
    location = node.get("location_id", 0) & 0xFFFF
    if not node.get("simd_count") or not location:
        return None
    bus, devfn = location >> 8, location & 0xFF
    return model.PciAddress(node.get("domain", 0), bus, devfn >> 3, devfn & 7)


def _cards(
    root: pathlib.Path, paths: Iterable[Mapping[str, int]]
) -> Mapping[tuple[int | None, model.PciAddress], model.PciAddress]:
    """Map each pair of serial number and address that a partition reports to its card's address.

    The address comes from location_id, which also has the number of the partition: in the high bits
    or, in most releases, in the bits of the function (tests/recorded/kfd.yaml, 1280 to 1287), which
    then does not exist on the bus. All partitions of a card report its serial number, or 0 if the
    kernel does not know it.
    """
    places = {(node.get("unique_id"), at) for node in paths if (at := _place(node)) is not None}
    devices = f"{root}/bus/pci/devices"
    cards = {}
    for serial, place in places:
        whole = dataclasses.replace(place, function=0)
        parts = [
            at
            for of, at in places
            if of == serial and serial and dataclasses.replace(at, function=0) == whole
        ]
        is_none = not os.path.exists(f"{devices}/{place}") and os.path.exists(f"{devices}/{whole}")
        cards[serial, place] = min(parts) if parts else whole if is_none else place
    return cards


def properties(folder: str) -> Mapping[str, int]:
    """Return the numbers in the file ``properties`` of *folder* by name, ``{}`` if unreadable."""
    try:
        lines = sysfs.attribute(folder, "properties").splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def drm_names(address: model.PciAddress, roots: Roots) -> tuple[str, ...]:
    """Return the names of the nodes in /dev/dri of all partitions of a card but the first."""
    if not partition_mode(address, roots):
        return ()
    minors = _minors(address, roots)
    platform = f"{roots.sysfs}/devices/platform"
    result: set[str] = set()
    for device in sysfs.names(platform):
        if device.startswith("amdgpu_xcp"):
            names = sysfs.names(f"{platform}/{device}/drm")
            result.update(names if not minors.isdisjoint(names) else ())
    return tuple(sorted(result))


def obstacle(address: model.PciAddress, roots: Roots) -> str | None:
    """Return why a guest would get only some of the card's partitions, and the remedy."""
    mode = partition_mode(address, roots)
    if not mode:
        return None
    there = _minors(address, roots).intersection(
        [*drm_names(address, roots), *sysfs.names(f"{sysfs.device(address, roots)}/drm")]
    )
    wanted = _PARTS.get(mode)
    if len(there) == wanted or (wanted is None and len(there) > 1):
        return None
    return (
        f"it is partitioned ({mode}), and KFD reports the render node of only {len(there)}; see "
        "the kernel's log about it, or make it whole (amd-smi set --compute-partition SPX)"
    )


def partition_mode(address: model.PciAddress, roots: Roots) -> str | None:
    """Return the partition mode; ``None`` for a whole card, ``unknown: ...`` while it is reset."""
    try:
        device = sysfs.device(address, roots)
        mode = sysfs.attribute(device, "current_compute_partition").upper()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"unknown: {error.strerror}"
    return None if mode == _WHOLE else mode


def _minors(address: model.PciAddress, roots: Roots) -> frozenset[str]:
    return frozenset(
        f"renderD{node.render_minor}"
        for node in nodes(roots.sysfs).values()
        if node.address == address and node.render_minor is not None
    )
