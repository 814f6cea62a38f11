# SPDX-License-Identifier: Apache-2.0
"""Which AMD cards are joined by XGMI, from the topology that the kernel's KFD driver shows.

Source: the kernel's drivers/gpu/drm/amd/amdkfd, kfd_topology.c and kfd_crat.h.
"""

from __future__ import annotations

import dataclasses
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
    address_by_node = _cards({node: _properties(f"{nodes}/{node}") for node in _folders(nodes)})
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


def _cards(
    nodes: Mapping[str, Mapping[str, int]],
) -> Mapping[str, model.PciAddress | None]:
    """The address of the card that each node is of, or ``None`` for a CPU.

    A card that is split is a node for each part. Of some releases the number of the part is in the
    high bits of location_id, of others in the three where a function's is (tests/recorded/kfd.yaml,
    1280 to 1287), so that they have addresses at which there is nothing: the card is at the lowest
    of them, and all of them have its serial number.
    """
    places = {node: _place(properties) for node, properties in nodes.items()}
    keys = {
        node: (nodes[node].get("unique_id"), dataclasses.replace(place, function=0))
        for node, place in places.items()
        if place is not None
    }
    first: dict[tuple[int | None, model.PciAddress], model.PciAddress] = {}
    for node, key in keys.items():
        if key[0] and (place := places[node]) is not None:
            first[key] = min(first.get(key, place), place)
    return {
        node: first.get(keys[node], place) if node in keys else None
        for node, place in places.items()
    }


def _place(properties: Mapping[str, int]) -> model.PciAddress | None:
    """What location_id says without its high bits; ``None`` for a CPU"""
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
