# SPDX-License-Identifier: Apache-2.0
"""Direct links between cards that NVML does not report: from KFD, or from the operator.

NVIDIA's driver knows its NVLinks, but it is absent on a host whose cards are bound to vfio-pci; and
no product id tells which cards of a host a bridge joins. The kernel's KFD driver reports XGMI links
(its drivers/gpu/drm/amd/amdkfd, kfd_topology.c and kfd_crat.h).
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from nova_gpu.core import exception, model
from nova_gpu.host.pci import kfd

OPTION = "link_groups"

_REMEDY = (
    "write the addresses of cards that are joined with each other, such as "
    "0000:04:00.0 0000:05:00.0, each in one such list"
)

LinkedSets = Sequence[frozenset[model.PciAddress]]

_IOLINK_TYPE_XGMI = 11


def parse(lines: Iterable[str]) -> LinkedSets:
    """Return the sets of cards that have direct links with each other by ``[gpu]link_groups``.

    :raises InvalidOption: if an entry is invalid, or a card is in two sets
    """
    sets: list[frozenset[model.PciAddress]] = []
    for line in lines:
        try:
            named = [model.PciAddress.parse(word) for word in line.split()]
        except exception.InvalidPciAddress as error:
            raise exception.InvalidOption(OPTION, line, str(error), _REMEDY) from error
        if len(set(named)) < 2 or len(set(named)) != len(named):
            reason = "it does not name two cards or more, each once"
            raise exception.InvalidOption(OPTION, line, reason, _REMEDY)
        if again := frozenset[model.PciAddress]().union(*sets).intersection(named):
            reason = f"{min(again)} is in another such list"
            raise exception.InvalidOption(OPTION, line, reason, _REMEDY)
        sets.append(frozenset(named))
    return sets


def with_links(gpus: Iterable[model.GPU], sets: LinkedSets) -> tuple[model.GPU, ...]:
    """Return *gpus*; those without links get NVLinks to the other cards of their set."""
    linked = tuple(gpus)
    present = {gpu.address for gpu in linked}
    links = {
        address: tuple(
            model.Link(peer, model.LinkType.NVLINK)
            for peer in sorted(members & present - {address})
        )
        for members in sets
        for address in members
    }
    return tuple(
        dataclasses.replace(gpu, links=gpu.links or links.get(gpu.address, ())) for gpu in linked
    )


def of_xgmi(root: pathlib.Path) -> Mapping[model.PciAddress, tuple[model.Link, ...]]:
    """Return the XGMI links of AMD's cards, by card. Their width is unknown to the kernel.

    Links that cannot be read are left out.

    :param root: the folder of sysfs
    """
    nodes = kfd.nodes(root)
    links: dict[model.PciAddress, set[model.PciAddress]] = {}
    for node in nodes.values():
        if node.address is None:
            continue
        for link in map(kfd.properties, node.links):
            other = nodes.get(str(link.get("node_to")))
            peer = other.address if other else None
            # A partitioned card has several nodes with one address.
            if link.get("type") == _IOLINK_TYPE_XGMI and peer not in (None, node.address):
                links.setdefault(node.address, set()).add(peer)
    return {
        address: tuple(model.Link(peer, model.LinkType.XGMI) for peer in sorted(peers))
        for address, peers in links.items()
    }
