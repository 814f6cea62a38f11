# SPDX-License-Identifier: Apache-2.0
"""Which of the free slots of a host's cards an instance's vGPUs get.

As XenServer has it: each next vGPU goes to the card with the least room left (depth-first), so that
whole cards stay free for large types, or to the one with the most (breadth-first), so that each
vGPU has as much of a card as can be. Of cards with equal room the first by address.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot


class Order(enum.StrEnum):
    DEPTH_FIRST = "depth_first"
    BREADTH_FIRST = "breadth_first"


def choose(free: Mapping[PciAddress, Sequence[Slot]], count: int, order: Order) -> tuple[Slot, ...]:
    """*count* slots, in the order in which they are drawn: the first n are the choice for n.

    :param free: the free slots of each card
    :raises ValueError: where there are fewer than *count*
    """
    left = {card: list(slots) for card, slots in free.items()}
    if not 0 <= count <= sum(map(len, left.values())):
        raise ValueError(f"{count} of {sum(map(len, left.values()))} free vGPUs")
    sign = 1 if order is Order.DEPTH_FIRST else -1
    chosen = []
    for _ in range(count):
        card = min((each for each in left if left[each]), key=lambda c: (sign * len(left[c]), c))
        chosen.append(left[card].pop(0))
    return tuple(chosen)
