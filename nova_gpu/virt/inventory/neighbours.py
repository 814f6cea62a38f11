# SPDX-License-Identifier: Apache-2.0
"""Neighbours: the network functions and disks that instances have by Nova's own PCI passthrough.

A flavor may require GPUs near them. Before a guest starts it gets GPUs near the neighbours that it
has (:mod:`nova_gpu.virt.inventory.exchange`), and is refused if its GPUs are not as near as its
flavor requires.

nova-gpu sorts the pools from which Nova draws neighbours, so that those near free GPUs come first.
Nova draws "in any order" (``PciDeviceStats.consume_requests``), unless Placement has chosen the
devices (``[filter_scheduler]pci_in_placement``). In Nova's own order all functions of one network
card come before those of the next. A host with two network cards would then refuse instances that
require GPUs near their function as soon as the GPUs near the first card are in use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from nova import objects

from nova_gpu.core.flavor.placement_policy import Near
from nova_gpu.core.model import GPU
from nova_gpu.core.scheduling import stats
from nova_gpu.core.topology import nearness
from nova_gpu.core.topology.nearness import Neighbour
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.virt.inventory.tracker import Tracker


class Neighbours:
    """A reader of the host's network functions and disks that Nova itself passes through.

    It caches their kinds and places for one period. A place is the NUMA node, the PCI root and the
    PCIe switch.
    """

    def __init__(self, tracker: Tracker, roots: Roots) -> None:
        self._tracker = tracker
        self._roots = roots
        self._read: dict[str, Neighbour | None] = {}
        self._there: tuple[Neighbour, ...] | None = None

    def look_again(self) -> None:
        self._read, self._there = {}, None

    def had_by(self, instance: objects.Instance) -> tuple[Neighbour, ...]:
        return self._at(device.address for device in instance.get_pci_devices())

    def near(self, gpus: Collection[GPU]) -> frozenset[Near]:
        """Return which kinds of network functions and disks the host has near any of *gpus*.

        Devices in use count, too. Near means on the same NUMA node, or closer. The result is empty
        before Nova's first period.
        """
        if self._there is None:
            if (pci := self._tracker.pci) is None:
                return frozenset()
            # A virtual function counts as its card, so that few places must be read.
            self._there = self._at(
                {neighbour.parent_addr or neighbour.address for neighbour in pci.pci_devs}
            )
        neighbours = (
            neighbour.kind
            for neighbour in self._there
            if any(nearness.distance(gpu, [neighbour]) < nearness.FAR for gpu in gpus)
        )
        return frozenset(neighbours) - {Near.ANY}

    def beside_free(self, gpus: Collection[GPU]) -> tuple[int, ...]:
        """Return how many of the free *gpus* are near one free network function, or one free disk.

        The result has two numbers for each kind in :data:`stats.NEAR`: the most GPUs behind one
        device's PCIe switch, and the most GPUs on one device's NUMA node.
        """
        pci = self._tracker.pci
        pools = list(pci.stats.pools) if pci else []
        free = self._at(card["address"] for card in pools if card["count"])
        entries = []
        for kind in stats.NEAR:
            distances = [
                [nearness.distance(gpu, [card]) for gpu in gpus]
                for card in free
                if card.kind is kind
            ]
            for farthest in (0, nearness.FAR - 1):
                counts = (sum(pool <= farthest for pool in of_one) for of_one in distances)
                entries.append(max(counts, default=0))
        return tuple(entries)

    def sort_pools(self, free: Iterable[GPU]) -> None:
        """Sort Nova's PCI pools, so that it first draws devices with the most *free* GPUs nearby.

        Nova sorts its pools by the number of their properties, which stays the first criterion.
        """
        if (pci := self._tracker.pci) is None:
            return
        gpus = list(free)

        def order(pool: Mapping[str, Any]) -> tuple[int, ...]:
            here = self._at([pool["address"]])
            distances = [nearness.distance(gpu, here) for gpu in gpus]
            within = (
                -sum(pair <= distance for pair in distances) for distance in range(nearness.FAR)
            )
            return len(pool), *within

        pci.stats.pools.sort(key=order)

    def _at(self, addresses: Iterable[str]) -> tuple[Neighbour, ...]:
        """Return the network functions and disks among the devices at *addresses*."""
        neighbours = []
        for address in addresses:
            if address not in self._read:
                self._read[address] = sysfs.neighbour(address, self._roots)
            if (neighbour := self._read[address]) is not None:
                neighbours.append(neighbour)
        return tuple(neighbours)
