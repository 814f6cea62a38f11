# SPDX-License-Identifier: Apache-2.0
"""The affinity of a guest's GPUs to its cells: which NUMA nodes of the host they may be on.

A guest has cells if its flavor or its image asks for NUMA nodes, pinned processors or huge pages;
Nova puts each cell on one node of the host. The policies are those of Nova for PCI devices, with
their meaning there (``PciDeviceStats._filter_pools_for_numa_cells`` and
``_filter_pools_for_socket_affinity`` in nova/pci/stats.py). They hold for each GPU alone: it may be
on the node of any cell, and a cell may have no GPU.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

# The number of GPUs on each NUMA node of a host; ``None`` stands for those whose node is unknown.
Counts: TypeAlias = Mapping[int | None, int]

# The socket of each NUMA node of a host, ``None`` if it is unknown.
Sockets: TypeAlias = Mapping[int, int | None]

EXTRA_SPEC = "hw:pci_numa_affinity_policy"

# Besides hw:cpu_policy, what gives a guest one cell
_OF_ONE_CELL = ("hw:mem_page_size", "hw:pmem", "resources:PCPU")

# The distance of a GPU that is on the node of a cell; of one whose node is unknown, or that is on
# the socket of a cell; of one on another node; and of one where the policy does not permit it.
IN_CELL, NEAR, REMOTE, FORBIDDEN = range(4)


class Policy(enum.StrEnum):
    """Where a guest's GPUs may be, in the words of ``hw:pci_numa_affinity_policy``.

    ``REQUIRED``: on the nodes of its cells. ``SOCKET``: also on other nodes of their sockets, if
    the sockets of all nodes are known. ``LEGACY``: on the nodes of its cells, or the GPU's node is
    unknown. ``PREFERRED``: anywhere, and on the nodes of its cells if possible.
    """

    REQUIRED = "required"
    SOCKET = "socket"
    LEGACY = "legacy"
    PREFERRED = "preferred"


# GPUs whose node is known are on the nodes of the cells.
STRICT = (Policy.LEGACY, Policy.REQUIRED)


def policy(stated: str | None, default: str | None, *, are_mediated: bool = False) -> Policy:
    """Return the policy for a guest's GPUs.

    :param default: what the operator sets for guests that state none; without it, the default is
        that of Nova for PCI devices, and for mediated devices, for which Nova has none, PREFERRED
    """
    return Policy(stated or default or (Policy.PREFERRED if are_mediated else Policy.LEGACY))


def cells(extra_specs: Mapping[str, str]) -> int:
    """Return how many cells a flavor gives its guests, 0 if it gives none.

    As ``numa_get_constraints`` in nova/virt/hardware.py, without what an image adds.
    """
    if (nodes := extra_specs.get("hw:numa_nodes", "")).isdecimal() and int(nodes):
        return int(nodes)
    is_pinned = extra_specs.get("hw:cpu_policy") in ("dedicated", "mixed")
    return int(is_pinned or any(name in extra_specs for name in _OF_ONE_CELL))


@dataclasses.dataclass(frozen=True, slots=True)
class Affinity:
    """The affinity of one guest on one host.

    ``cells`` are the nodes of the guest's cells. Without cells its GPUs may be anywhere.
    """

    policy: Policy
    cells: frozenset[int]
    sockets: Sockets = dataclasses.field(default_factory=dict)

    def distance(self, node: int | None) -> int:
        """Return how far a GPU on *node* is from the cells, ``FORBIDDEN`` if it may not be there.

        Without cells all are equally near.
        """
        if not self.cells or node in self.cells:
            return IN_CELL
        match self.policy:
            case Policy.SOCKET:
                return NEAR if node in self._nodes_of_sockets() else FORBIDDEN
            case Policy.LEGACY:
                return NEAR if node is None else FORBIDDEN
            case Policy.PREFERRED:
                return NEAR if node is None else REMOTE
            case Policy.REQUIRED:
                return FORBIDDEN

    def holds(self, nodes: Iterable[int | None]) -> bool:
        return all(self.distance(node) < FORBIDDEN for node in nodes)

    def room(self, counts: Counts) -> int:
        return sum(count for node, count in counts.items() if self.distance(node) < FORBIDDEN)

    def shortage(self, wanted: int, free: Counts) -> str:
        """Return why the guest cannot have *wanted* of the *free* GPUs, for its user."""
        nodes = " and ".join(f"node {cell}" for cell in sorted(self.cells))
        return (
            f"its flavor wants {wanted} GPUs on NUMA {nodes}, where its processors and memory are "
            f"({EXTRA_SPEC} {self.policy}), but {described(free)}"
        )

    def _nodes_of_sockets(self) -> frozenset[int]:
        """Return the nodes on the sockets of the cells; none if the socket of any is unknown."""
        if None in self.sockets.values():
            return frozenset()
        sockets = {self.sockets.get(node) for node in self.cells} - {None}
        return frozenset(node for node, socket in self.sockets.items() if socket in sockets)


def order(
    policy: Policy, sockets: Sockets, counts: Counts, nodes: Collection[int]
) -> tuple[int, ...]:
    """Return *nodes* in the order in which a guest's cells reach the most GPUs.

    For each number of cells, cells on so many nodes from the front reach as many GPUs in *counts*
    as cells anywhere on *nodes*. So one socket comes after the other if the policy is SOCKET.

    :param nodes: the nodes of the host that a cell may be on
    """
    richest = sorted(nodes, key=lambda node: (-counts.get(node, 0), node))
    if policy is not Policy.SOCKET or None in sockets.values():
        return tuple(richest)
    reached = collections.Counter[int | None]()
    for node, socket in sockets.items():
        reached[socket] += counts.get(node, 0)
    first = {sockets.get(node): node for node in reversed(richest)}
    of_each = sorted(first.values(), key=lambda node: (-reached[sockets.get(node)], node))
    return (*of_each, *(node for node in richest if node not in of_each))


def most(
    policy: Policy, sockets: Sockets, counts: Counts, nodes: Collection[int], cells: int
) -> int:
    """Return the most GPUs in *counts* that a guest with so many *cells* could have.

    :param nodes: as in :func:`order`
    :returns: 0 if there are fewer nodes than cells: Nova puts each on a node of its own
    """
    if len(nodes) < cells:
        return 0
    best = order(policy, sockets, counts, nodes)[:cells]
    return Affinity(policy, frozenset(best), sockets).room(counts)


def described(free: Counts) -> str:
    """Return how many GPUs are free on each node: ``3 GPUs are free, 1 on node 0, 2 on node 1``."""
    nodes = sorted(free, key=lambda node: (node is None, node or 0))
    places = [f"{free[n]} on {'an unknown node' if n is None else f'node {n}'}" for n in nodes]
    return ", ".join([f"{sum(free.values())} GPUs are free", *places])
