# SPDX-License-Identifier: Apache-2.0
"""Which of the free GPUs an instance gets."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from nova_gpu.core.model import PciAddress
from nova_gpu.core.topology import Place


def choose(
    free: Collection[PciAddress], count: int, places: Mapping[PciAddress, Place]
) -> tuple[PciAddress, ...]:
    """The best *count* of *free*, sorted: on the fewest islands, and of those the tightest fit.

    An island is a circle of direct links, and inside it a NUMA node. The tightest fit leaves the
    large islands whole for who needs them. Equal ones go by address, so that the answer is always
    the same. *places* must know every address of *free*.

    :raises ValueError: where *free* has fewer than *count*
    """
    if not 0 <= count <= len(free):
        raise ValueError(f"{count} of {len(free)} free GPUs")
    depth = len(next(iter(places.values()), ()))
    return tuple(sorted(_choose(sorted(free), count, places, 0, depth)))


def _choose(
    free: list[PciAddress], count: int, places: Mapping[PciAddress, Place], level: int, depth: int
) -> list[PciAddress]:
    if count == 0 or level == depth:
        return free[:count]
    islands = [
        list(members)
        for _, members in itertools.groupby(
            sorted(free, key=lambda address: (places[address][level], address)),
            key=lambda address: places[address][level],
        )
    ]
    fitting = [island for island in islands if len(island) >= count]
    if fitting:
        tightest = min(fitting, key=lambda island: (len(island), island))
        return _choose(tightest, count, places, level + 1, depth)
    # Whole islands from the largest down touch the fewest; the last one is again a tightest fit.
    largest = max(islands, key=lambda island: (len(island), [-_order(a) for a in island]))
    rest = [address for address in free if address not in set(largest)]
    return largest + _choose(rest, count - len(largest), places, level, depth)


def _order(address: PciAddress) -> int:
    return (address.domain << 16) | (address.bus << 8) | (address.slot << 3) | address.function
