# SPDX-License-Identifier: Apache-2.0
"""Neighbours: the network functions and disks that instances have by Nova's own PCI passthrough.

A flavor may require GPUs near them. Nova claims these devices first, then the GPUs
(``ResourceTracker.instance_claim`` and ``_move_claim``, the same in Nova 32 to 34). So GPUs are
chosen near the neighbours that are claimed already. A claim passes neither its instance nor the
instance's neighbours to the driver: doc/source/contributor/upstream.rst. The start of the guest
knows both, and refuses a guest whose GPUs are not as near as its flavor requires
(:meth:`Neighbours.had_by`).

nova-gpu sorts the pools from which Nova draws neighbours, so that those near free GPUs come first.
Nova draws "in any order" (``PciDeviceStats.consume_requests``), unless Placement has chosen the
devices (``[filter_scheduler]pci_in_placement``). In Nova's own order all functions of one network
card come before those of the next. A host with two network cards would then refuse instances that
require GPUs near their function as soon as the GPUs near the first card are in use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from nova import context as nova_context
from nova import objects
from oslo_log import log as logging

from nova_gpu.core import boundary
from nova_gpu.core.flavor.placement_policy import Near
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.model import GPU
from nova_gpu.core.scheduling import stats
from nova_gpu.core.topology import nearness
from nova_gpu.core.topology.nearness import Neighbour
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.virt.inventory.pool import Claimant
from nova_gpu.virt.inventory.tracker import Tracker
from nova_gpu.virt.usage import records

LOG = logging.getLogger(__name__)


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
        """Discard the cached kinds and places of network functions and disks."""
        self._read, self._there = {}, None

    def had_by(self, instance: objects.Instance) -> tuple[Neighbour, ...]:
        """Return the network functions and disks that the instance has on this host."""
        return self._at(device.address for device in instance.get_pci_devices())

    def claimant(self) -> Claimant | None:
        """Return the facts about the instance for which Nova is claiming GPUs right now.

        Return ``None`` if the instance has no neighbours, or they are unknown. Call it under the
        lock of Nova's resource tracker.

        The tracker does not pass the instance, but its record of PCI devices identifies it: the
        newest devices that are claimed and not yet allocated belong to this claim. Devices of a
        move in progress, or of a failed claim until the next period, are older entries of the
        record. So a claim without PCI devices may be mistaken for an older claim; its GPUs are then
        near that claim's devices, and may be less close to each other.
        """
        try:
            with boundary.crossed():
                return self._claimant()
        except boundary.Failure as error:
            LOG.warning(
                "Cannot read the claiming instance, so its GPUs are chosen without regard to its "
                "network functions and disks: %s",
                error,
            )
            return None

    def _claimant(self) -> Claimant | None:
        if (instance := self._tracker.handing_out) is not None:
            return _of_flavor(records.request_of(instance), self.had_by(instance))
        pci = self._tracker.pci
        uuid = next(reversed(pci.claims), None) if pci else None
        if uuid is None:
            return None
        neighbour = self._at(neighbour.address for neighbour in pci.claims[uuid])
        if all(near.kind is Near.ANY for near in neighbour):
            return None
        context = nova_context.get_admin_context()
        instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=["flavor"])
        flavor = instance.new_flavor or instance.flavor
        return _of_flavor(records.request_of_flavor(flavor), neighbour)

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


def _of_flavor(request: FlavorRequest, neighbours: tuple[Neighbour, ...]) -> Claimant | None:
    return Claimant(request.whole.arrangement, neighbours) if request.whole else None
