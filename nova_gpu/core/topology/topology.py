# SPDX-License-Identifier: Apache-2.0
"""The islands that GPUs are on: which GPUs are near each other.

An island is a set of GPUs on one NUMA node, on one PCI root, behind one PCIe switch or in one
circle. A circle is a set of GPUs that direct links (NVLink, XGMI) join, also by way of other GPUs.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from nova_gpu.core.model import GPU, PciAddress

# The place of a GPU, the most important level first: its circle of direct links (NVLink, XGMI), its
# NUMA node, its PCI root, its PCIe switch. Two GPUs with the same number at a level are near each
# other there.
Place = tuple[int, ...]

CIRCLE, NUMA_NODE, PCI_ROOT, PCIE_SWITCH = LEVELS = range(4)

# A GPU with this number shares the level with no other GPU, or that is unknown. The kernel reports
# the same number for an unknown NUMA node.
ALONE = -1

# The number of GPUs in each place.
Cells = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Islands:
    """The sizes of a group's largest islands: on one NUMA node, and in one circle.

    A card whose place is unknown counts as alone.
    """

    numa: int = 1
    nvlink: int = 1


UNKNOWN = Islands()


def islands(gpus: Collection[GPU]) -> Islands:
    """Return the sizes of the largest islands of *gpus*."""
    nodes = collections.Counter(gpu.numa_node for gpu in gpus if gpu.numa_node is not None)
    joined = collections.Counter(circles(gpus).values())
    return Islands(max(nodes.values(), default=1), max(joined.values(), default=1))


def places(gpus: Iterable[GPU]) -> Mapping[PciAddress, Place]:
    """Return the place of each GPU among *gpus*.

    The numbers of a place only tell whether two GPUs share an island; they have no other meaning.
    """
    by_address = {gpu.address: gpu for gpu in gpus}
    circle = circles(by_address.values())
    roots: dict[str, int] = {}
    root = {
        address: roots.setdefault(gpu.pci_root, len(roots)) if gpu.pci_root else ALONE
        for address, gpu in by_address.items()
    }
    return {
        address: (
            circle[address],
            # GPUs on one root are on one node, even if that is unknown.
            _node_of_root(root[address]) if gpu.numa_node is None else gpu.numa_node,
            root[address],
            ALONE if gpu.pcie_switch is None else _number(gpu.pcie_switch),
        )
        for address, gpu in by_address.items()
    }


def cells(gpus: Iterable[GPU]) -> Cells:
    """Return how many of *gpus* are in each place, in a canonical form.

    Hosts with the same layout of GPUs return the same value, whatever their addresses.
    """
    groups = list(places(gpus).values())
    for level in LEVELS:
        many = collections.Counter(place[level] for place in groups)
        numbers: dict[int, int] = {}
        for index, place in enumerate(groups):
            number = place[level]
            if number != ALONE and many[number] > 1:
                number = numbers.setdefault(number, len(numbers))
            else:
                number = ALONE
            groups[index] = (*place[:level], number, *place[level + 1 :])
    return tuple((*place, count) for place, count in sorted(collections.Counter(groups).items()))


def by_node(gpus: Iterable[GPU], free: Collection[PciAddress]) -> tuple[tuple[int, int, int], ...]:
    """Return for each NUMA node its number, how many of *gpus* are there, and how many are free.

    :data:`ALONE` stands for an unknown node.
    """
    node = {gpu.address: ALONE if gpu.numa_node is None else gpu.numa_node for gpu in gpus}
    total = collections.Counter(node.values())
    left = collections.Counter(n for address, n in node.items() if address in free)
    return tuple((number, total[number], left[number]) for number in sorted(total))


def circles(gpus: Iterable[GPU]) -> Mapping[PciAddress, int]:
    """Return the number of each GPU's circle, by address; the numbers are arbitrary."""
    by_address = {gpu.address: gpu for gpu in gpus}
    circle: dict[PciAddress, int] = {}
    for address in sorted(by_address):
        if address not in circle:
            _spread(by_address, address, circle, len(circle))
    return circle


def nesting(of: Sequence[Place]) -> tuple[int, ...]:
    """Return the levels of *of*, outer ones first: each island lies within one island before it.

    A root is on one NUMA node, and a switch below one root; only the position of the circles
    varies. If circles cross other islands, no order is exact: an island that a circle divides then
    counts once in each circle.
    """
    rest = [level for level in LEVELS if level != CIRCLE]
    levels = (CIRCLE, *rest)
    for k in range(len(rest) + 1):
        order = (*rest[:k], CIRCLE, *rest[k:])
        broken = _first_broken(order, of)
        if broken is None:
            return order
        if broken >= k:  # the circles are whole, and what is inside of them is not
            levels = order
    return levels


def _first_broken(order: Sequence[int], of: Sequence[Place]) -> int | None:
    """Return the first depth in *order* whose islands divide an island of the next level."""
    for depth, (outer, inner) in enumerate(itertools.pairwise(order)):
        around: dict[int, object] = {}
        for place in of:
            if place[inner] != ALONE:
                # GPUs that are alone in the outer level cannot be together in the inner one.
                outside = place[outer] if place[outer] != ALONE else object()
                if around.setdefault(place[inner], outside) != outside:
                    return depth
    return None


def _node_of_root(root: int) -> int:
    """Return the number of the unknown NUMA node of *root*: negative, as no real node's is."""
    return ALONE if root == ALONE else ALONE - 1 - root


def _number(address: PciAddress) -> int:
    return (address.domain << 16) | (address.bus << 8) | (address.slot << 3) | address.function


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
            peers = (link.peer for link in by_address[address].links)
            reached.extend(peer for peer in peers if peer in by_address)
