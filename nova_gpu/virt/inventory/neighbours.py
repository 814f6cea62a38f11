# SPDX-License-Identifier: Apache-2.0
"""The network functions and disks that Nova's own passthrough gives to instances with GPUs.

Nova claims these devices first, then the GPUs (``ResourceTracker.instance_claim`` and
``_move_claim``, the same in Nova 32 to 34). So GPUs are chosen near the devices that are claimed
already. A claim passes neither its instance nor the instance's other devices to the driver:
doc/source/contributor/upstream.rst. The start of the guest knows both, and refuses a guest whose
GPUs are not as near as its flavor requires (:meth:`Neighbours.had_by`). It cannot exchange the
GPUs: Nova's records assign them already, and an exchange would be a second claim.

nova-gpu sorts the pools from which Nova draws these devices, so that devices near free GPUs come
first. Nova draws "in any order" (``PciDeviceStats.consume_requests``), unless Placement has chosen
the devices (``[filter_scheduler]pci_in_placement``). In Nova's own order all functions of one card
come before those of the next. A host with two network cards would then refuse instances that
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
    """The network functions and disks of a host; their places are cached for one period."""

    def __init__(self, tracker: Tracker, roots: Roots) -> None:
        self._tracker = tracker
        self._roots = roots
        self._read: dict[str, Neighbour | None] = {}
        self._there: tuple[Neighbour, ...] | None = None

    def look_again(self) -> None:
        """Discard the cached places."""
        self._read, self._there = {}, None

    def had_by(self, instance: objects.Instance) -> tuple[Neighbour, ...]:
        """Return the network functions and disks that the instance has on this host."""
        return self._at(device.address for device in instance.get_pci_devices())

    def claimant(self) -> Claimant | None:
        """Return the instance's arrangement and devices for the claim that Nova makes right now.

        Return ``None`` if the instance has no such devices, or they are unknown; then any GPUs will
        do. Call it under the lock of Nova's resource tracker.

        The tracker does not pass the instance, but its record of PCI devices identifies it: devices
        that are claimed and not yet allocated belong to this claim. Devices of a move under way, or
        of a failed claim until the next period, are older entries of the record. So a claim without
        PCI devices may be mistaken for such an older one; it then only gets a set that fits less
        tightly. The flavor is read from the database, where Nova saved the instance in this claim,
        and only if the instance has such devices.
        """
        try:
            with boundary.crossed():
                return self._claimant()
        except boundary.Failure as error:
            LOG.warning("Cannot choose GPUs near the other devices of their instance: %s", error)
            return None

    def _claimant(self) -> Claimant | None:
        """Return the result of :meth:`claimant`.

        :raises Exception: if the instance or its flavor cannot be read
        """
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
        """Return the kinds of devices that at least one of *gpus* is near, in use or free.

        The result is empty before Nova's first period.
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
        """Return the largest number of the free *gpus* near one free device of each kind.

        The result has two numbers for each kind in :data:`stats.NEAR`: the GPUs behind the device's
        PCIe switch, and the GPUs on its NUMA node.
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
        """Return the network functions and disks at these PCI addresses."""
        neighbours = []
        for address in addresses:
            if address not in self._read:
                self._read[address] = sysfs.neighbour(address, self._roots)
            if (neighbour := self._read[address]) is not None:
                neighbours.append(neighbour)
        return tuple(neighbours)


def _of_flavor(request: FlavorRequest, neighbours: tuple[Neighbour, ...]) -> Claimant | None:
    """Return the claimant of a flavor, ``None`` if the flavor requests no whole cards.

    :raises InvalidExtraSpec: if the flavor's request cannot be parsed
    """
    return Claimant(request.whole.arrangement, neighbours) if request.whole else None
