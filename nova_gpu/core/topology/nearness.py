# SPDX-License-Identifier: Apache-2.0
"""How two cards lie to each other, in the words of ``nvidia-smi topo -m``."""

from __future__ import annotations

import enum

from nova_gpu.core.model import GPU


class Nearness(enum.StrEnum):
    """What is between two cards that no direct link joins, nearest first."""

    SAME_SWITCH = "PIX"
    SAME_ROOT = "PHB"
    SAME_NODE = "NODE"
    ACROSS_NODES = "SYS"
    UNKNOWN = "?"


LEGEND = {
    "NV#": "so many NVLinks join them",
    "XGMI": "XGMI joins them",
    Nearness.SAME_SWITCH: "one PCIe switch",
    Nearness.SAME_ROOT: "one PCI root",
    Nearness.SAME_NODE: "one NUMA node",
    Nearness.ACROSS_NODES: "across NUMA nodes",
    Nearness.UNKNOWN: "not known",
}


def between(one: GPU, other: GPU) -> str:
    """One of the keys of :data:`LEGEND`, with the number of links for ``#``"""
    for link in one.links:
        if link.peer == other.address:
            return f"NV{link.width}" if link.type == "nvlink" else "XGMI"
    if one.pcie_switch and one.pcie_switch == other.pcie_switch:
        return Nearness.SAME_SWITCH
    if one.pci_root and one.pci_root == other.pci_root:
        return Nearness.SAME_ROOT
    if one.numa_node is None or other.numa_node is None:
        return Nearness.UNKNOWN
    return Nearness.SAME_NODE if one.numa_node == other.numa_node else Nearness.ACROSS_NODES
