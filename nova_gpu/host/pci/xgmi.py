# SPDX-License-Identifier: Apache-2.0
"""Which AMD cards are joined by XGMI, from the topology that the kernel's KFD driver shows.

Source: the kernel's drivers/gpu/drm/amd/amdkfd, kfd_topology.c and kfd_crat.h.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from nova_gpu.core import model
from nova_gpu.host.pci import kfd

_IOLINK_TYPE_XGMI = 11


def links(root: pathlib.Path) -> Mapping[model.PciAddress, tuple[model.Link, ...]]:
    """XGMI links by card. What cannot be read is no link; the kernel does not tell their width."""
    nodes = kfd.nodes(root)
    found: dict[model.PciAddress, set[model.PciAddress]] = {}
    for node in nodes.values():
        if node.address is None:
            continue
        for link in map(kfd.properties, node.links):
            other = nodes.get(str(link.get("node_to")))
            peer = other.address if other else None
            # A card that is split is several nodes at one address.
            if link.get("type") == _IOLINK_TYPE_XGMI and peer not in (None, node.address):
                found.setdefault(node.address, set()).add(peer)
    return {
        address: tuple(model.Link(peer, model.LinkType.XGMI) for peer in sorted(peers))
        for address, peers in found.items()
    }
