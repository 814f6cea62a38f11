# SPDX-License-Identifier: Apache-2.0
"""The network functions and disks that Nova's own passthrough gives to instances with GPUs.

Nova claims them first, then the GPUs (``ResourceTracker.instance_claim`` and ``_move_claim``, the
same in Nova 32 to 34). So the GPUs are chosen near what is claimed already. A claim tells the
driver neither its instance nor what else it has: doc/source/contributor/upstream.rst. The start
knows both, and refuses a guest whose flavor requires what it did not get (:meth:`had_by`); but by
then the GPUs are the instance's in Nova's records, and to exchange them would be a second claim.

The pools that Nova draws from are kept in an order in which those near free GPUs come first. It
draws "in any order", as it says itself (``PciDeviceStats.consume_requests``), unless Placement has
said which (``[filter_scheduler]pci_in_placement``). In its own order all functions of one card are
drawn before the first of the next, so that a host with two would refuse each instance that requires
GPUs near its function as soon as those of the first card are in use.
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
    """The network functions and disks near the GPUs; their places are read once per look."""

    def __init__(self, tracker: Tracker, roots: Roots) -> None:
        self._tracker = tracker
        self._roots = roots
        self._read: dict[str, Neighbour | None] = {}
        self._there: tuple[Neighbour, ...] | None = None

    def look_again(self) -> None:
        """Clear the places of functions."""
        self._read, self._there = {}, None

    def had_by(self, instance: objects.Instance) -> tuple[Neighbour, ...]:
        """Return what the instance has on this host."""
        return self._at(device.address for device in instance.get_pci_devices())

    def claimant(self) -> Claimant | None:
        """Return whose claim the tracker fills at this moment, under its lock.

        ``None`` where it has no device other than its GPUs, or where that cannot be told, and any
        GPUs will do.

        The tracker does not say whose it is, and its record of PCI devices does: what is claimed
        and not yet allocated is this claim's. What a move under way has there, or a claim that
        failed, until the next period, is older; one without PCI devices is taken for it, and that
        costs no more than the set that fits tightest. The flavor is read from the database, in
        which Nova has saved the instance in this very claim, and only of those that have other
        devices than their GPUs.
        """
        try:
            with boundary.crossed():
                return self._claimant()
        except boundary.Failure as error:
            LOG.warning("Cannot choose GPUs near the other devices of their instance: %s", error)
            return None

    def _claimant(self) -> Claimant | None:
        """Return the claimant of the claim that is under way.

        :raises Exception: where the instance or its flavor cannot be read
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
        """Return the devices that some of *gpus* are near, in use or free.

        Nothing before Nova's first period.
        """
        if self._there is None:
            if (pci := self._tracker.pci) is None:
                return frozenset()
            # Of virtual functions the card, of which there are few.
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
        """Return the most of *gpus*, which are free, near one free function or disk.

        They are those behind its switch, and those on its NUMA node, for each kind in
        :data:`stats.NEAR`.
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
        """Let Nova draw functions first that have most of the *free* GPUs near them.

        Nova sorts its pools by how many properties they have, which stays what counts first.
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
        """Return what there is at them."""
        neighbours = []
        for address in addresses:
            if address not in self._read:
                self._read[address] = sysfs.neighbour(address, self._roots)
            if (neighbour := self._read[address]) is not None:
                neighbours.append(neighbour)
        return tuple(neighbours)


def _of_flavor(request: FlavorRequest, neighbours: tuple[Neighbour, ...]) -> Claimant | None:
    """Return the claimant of a flavor.

    :raises InvalidExtraSpec: where the flavor does not say how its GPUs are to lie
    """
    return Claimant(request.whole.arrangement, neighbours) if request.whole else None
