# SPDX-License-Identifier: Apache-2.0
"""Distances between two cards, as in ``nvidia-smi topo -m``, and from a card to other devices."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterable
from typing import Protocol

from nova_gpu.core.flavor.placement_policy import Near
from nova_gpu.core.model import GPU, PciAddress

# Base class, or base class and subclass, as in the kernel's include/linux/pci_ids.h
_NETWORK = 0x02
_NVM = 0x0108


class Nearness(enum.StrEnum):
    """The PCI Express path between two cards, shortest first, in the words of ``nvidia-smi``."""

    SAME_SWITCH = "PIX"
    SAME_ROOT = "PHB"
    SAME_NODE = "NODE"
    ACROSS_NODES = "SYS"
    UNKNOWN = "?"


LEGEND = {
    "X": "itself",
    "NV#": "so many NVLinks join them",
    "XGMI": "XGMI joins them",
    Nearness.SAME_SWITCH: "one PCIe switch",
    Nearness.SAME_ROOT: "one PCI root",
    Nearness.SAME_NODE: "one NUMA node",
    Nearness.ACROSS_NODES: "across NUMA nodes",
    Nearness.UNKNOWN: "not known",
}

# The distance of two functions: 0 behind one switch, 1 on one root, 2 on one NUMA node, and
# otherwise, or if unknown,
FAR = 3
_DISTANCES = {Nearness.SAME_SWITCH: 0, Nearness.SAME_ROOT: 1, Nearness.SAME_NODE: 2}


class Placed(Protocol):
    """A PCI function with its place on the host, such as a :class:`nova_gpu.core.model.GPU`."""

    @property
    def numa_node(self) -> int | None: ...

    @property
    def pci_root(self) -> str | None: ...

    @property
    def pcie_switch(self) -> PciAddress | None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Neighbour:
    """A PCI function that Nova's own passthrough gives to instances, with its place."""

    class_code: int
    numa_node: int | None = None
    pci_root: str | None = None
    pcie_switch: PciAddress | None = None

    @property
    def kind(self) -> Near:
        """The value of ``gpu:near`` that names such a device, ``ANY`` if none does."""
        if self.class_code >> 16 == _NETWORK:
            return Near.NIC
        return Near.NVME if self.class_code >> 8 == _NVM else Near.ANY


def between(one: GPU, other: GPU) -> str:
    """Return the path between two GPUs as ``nvidia-smi topo -m`` writes it: ``NV12`` or ``PIX``.

    :data:`LEGEND` explains the words; ``#`` there stands for the number of links.
    """
    for link in one.links:
        if link.peer == other.address:
            return f"NV{link.width}" if link.type == "nvlink" else "XGMI"
    return of_places(one, other)


def of_places(one: Placed, other: Placed) -> Nearness:
    """Return the PCI Express path between two functions, regardless of direct links."""
    if one.pcie_switch and one.pcie_switch == other.pcie_switch:
        return Nearness.SAME_SWITCH
    if one.pci_root and one.pci_root == other.pci_root:
        return Nearness.SAME_ROOT
    if one.numa_node is None or other.numa_node is None:
        return Nearness.UNKNOWN
    return Nearness.SAME_NODE if one.numa_node == other.numa_node else Nearness.ACROSS_NODES


def distance(one: Placed, others: Collection[Placed]) -> int:
    """Return the distance of *one* from the nearest of *others*, :data:`FAR` without any."""
    distances = (_DISTANCES.get(of_places(one, other), FAR) for other in others)
    return min(distances, default=FAR)


def wanted(near: Near, neighbours: Iterable[Neighbour]) -> tuple[Neighbour, ...]:
    """Return the *neighbours* that the value *near* of ``gpu:near`` names, none for ``ANY``."""
    return tuple(neighbour for neighbour in neighbours if near is neighbour.kind is not Near.ANY)
