# SPDX-License-Identifier: Apache-2.0
"""Which AMD cards are joined by XGMI, from the topology that the kernel's KFD driver shows.

Source: the kernel's drivers/gpu/drm/amd/amdkfd, kfd_topology.c and kfd_crat.h.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping

from nova_gpu.core import model
from nova_gpu.host.pci import sysfs

_TOPOLOGY = "class/kfd/kfd/topology/nodes"
_IOLINK_TYPE_XGMI = 11


def links(root: pathlib.Path) -> Mapping[model.PciAddress, tuple[model.Link, ...]]:
    """XGMI links by card. What cannot be read is no link; the kernel does not tell their width."""
    nodes = f"{root}/{_TOPOLOGY}"
    address_by_node = {node: _address(f"{nodes}/{node}") for node in _folders(nodes)}
    found: dict[model.PciAddress, set[model.PciAddress]] = {}
    for node, address in address_by_node.items():
        if address is None:
            continue
        for link in _folders(f"{nodes}/{node}/io_links"):
            properties = _properties(f"{nodes}/{node}/io_links/{link}")
            peer = address_by_node.get(str(properties.get("node_to")))
            # A card that is split is several nodes at one address.
            if properties.get("type") == _IOLINK_TYPE_XGMI and peer not in (None, address):
                found.setdefault(address, set()).add(peer)
    return {
        address: tuple(model.Link(peer, model.LinkType.XGMI) for peer in sorted(peers))
        for address, peers in found.items()
    }


def _address(node: str) -> model.PciAddress | None:
    """The address of the node's card, or ``None`` for a CPU. The high bits of location_id tell the
    parts of a split card apart; bus, slot and function are the low sixteen.
    """
    properties = _properties(node)
    location = properties.get("location_id", 0) & 0xFFFF
    if not properties.get("simd_count") or not location:
        return None
    bus, devfn = location >> 8, location & 0xFF
    return model.PciAddress(properties.get("domain", 0), bus, devfn >> 3, devfn & 7)


def _properties(folder: str) -> Mapping[str, int]:
    try:
        lines = sysfs.attribute(folder, "properties").splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _folders(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
