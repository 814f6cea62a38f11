# SPDX-License-Identifier: Apache-2.0
"""Which GPUs are near each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nova_gpu.core.model import GPU, PciAddress

# Where a GPU belongs, the widest circle first: two GPUs with the same first number reach each other
# over direct links (NVLink, XGMI), with the same second one they share a NUMA node as well.
Place = tuple[int, int]


def places(gpus: Iterable[GPU]) -> Mapping[PciAddress, Place]:
    """The place of each GPU.

    Where none of *gpus* has a direct link to another they are all in one circle, so that only the
    NUMA node tells them apart; else one without links is alone. An unknown NUMA node is a node of
    its own: -1, as the kernel has it.
    """
    by_address = {gpu.address: gpu for gpu in gpus}
    linked = any(_peers(by_address, address) for address in by_address)
    circle: dict[PciAddress, int] = {}
    for address in sorted(by_address):
        if address not in circle:
            _spread(by_address, address, circle, len(circle))
    return {
        address: (circle[address] if linked else 0, -1 if gpu.numa_node is None else gpu.numa_node)
        for address, gpu in by_address.items()
    }


def _peers(by_address: Mapping[PciAddress, GPU], address: PciAddress) -> list[PciAddress]:
    return [link.peer for link in by_address[address].links if link.peer in by_address]


def _spread(
    by_address: Mapping[PciAddress, GPU],
    start: PciAddress,
    circle: dict[PciAddress, int],
    number: int,
) -> None:
    reached = [start]
    while reached:
        address = reached.pop()
        if address not in circle:
            circle[address] = number
            reached.extend(_peers(by_address, address))
