# SPDX-License-Identifier: Apache-2.0
"""The pool from which a claim of Nova's resource tracker draws GPUs that are close together.

A claim passes the number of GPUs, not the instance (doc/source/contributor/upstream.rst). What an
instance has of a pool is exchanged for free devices that suit it better once all is known about it
(:mod:`nova_gpu.virt.inventory.exchange`).

``ResourceTracker._claim_resources`` (nova/compute/resource_tracker.py, the same in Nova 32 to 34)
takes the set of a provider's resources in the provider tree, subtracts the assigned ones, compares
the requested amount with the rest, and calls ``pop()`` once per unit. So the set in the tree is a
:class:`DeviceSet`, whose subtraction returns a :class:`Pool`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import weakref
from collections.abc import Collection, Mapping, Set
from typing import Any, Protocol

from nova import objects

from nova_gpu.conf import CONF
from nova_gpu.core import device
from nova_gpu.core.device import Device
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.topology import affinity
from nova_gpu.core.topology.affinity import Affinity, Sockets
from nova_gpu.core.topology.nearness import Neighbour


@dataclasses.dataclass(frozen=True, slots=True)
class Claimant:
    """The facts about an instance that the choice of its GPUs depends on.

    ``flavor`` is the request of its flavor. ``neighbours`` are the network functions and disks that
    the instance has by Nova's own PCI passthrough. ``cells`` are the nodes of its NUMA cells, and
    ``policy`` is the affinity to them that its flavor or image states.
    """

    flavor: FlavorRequest
    neighbours: tuple[Neighbour, ...] = ()
    cells: frozenset[int] = frozenset()
    policy: str | None = None
    sockets: Sockets = dataclasses.field(default_factory=dict)

    def affinity(self, *, are_mediated: bool = False) -> Affinity | None:
        """Return the affinity of GPUs, or of mediated devices, ``None`` without NUMA cells."""
        if not self.cells:
            return None
        default = CONF.gpu.pci_numa_affinity_policy
        policy = affinity.policy(self.policy, default, are_mediated=are_mediated)
        return Affinity(policy, self.cells, self.sockets)


class FreeDevices(Protocol):
    """The inventory that a :class:`DeviceSet` asks for free devices when a claim draws from it."""

    @abc.abstractmethod
    def usable(
        self, provider_uuid: str, addresses: Collection[Device], assigned: Set[Any]
    ) -> frozenset[Device]:
        """Return those of the provider's *addresses* that a new instance can get now.

        Such a device has no reason against it, is in no domain, and is not reserved for a claim or
        a start. Two providers can have the same address, if another product replaced a card.

        :param assigned: the resource tracker's own set of the provider's assigned resources
        """

    @abc.abstractmethod
    def choose(
        self, provider_uuid: str, free: Collection[Device], count: int
    ) -> tuple[Device, ...]:
        """Return the best combination of *count* of the provider's *free* devices."""

    @abc.abstractmethod
    def distances(
        self, provider_uuid: str, devices: Collection[Device], claimant: Claimant
    ) -> Mapping[Device, int]:
        """Return how far each device of the provider is from the claimant's NUMA cells.

        The distances are those of :meth:`nova_gpu.core.topology.affinity.Affinity.distance`, and
        all are 0 if it has no cells.
        """

    @abc.abstractmethod
    def improve(
        self,
        provider_uuid: str,
        own: Collection[Device],
        free: Collection[Device],
        claimant: Claimant,
    ) -> Collection[Device]:
        """Return as many of the *free* devices as *own* has, if they suit *claimant* better.

        The result may include devices in *own*. It is *own* if none suit better.
        """

    @abc.abstractmethod
    def hand_out(
        self, addresses: Collection[Device], unneeded: Collection[Device], assigned: Set[Any]
    ) -> None:
        """Reserve *addresses* for a claim, and free *unneeded*, which it drew but does not need."""


# The sets in the tree carry no state: the tree keeps an old set if a new one has equal elements,
# and it deep-copies sets, which is impossible for a lock or a driver. So a set finds its supply
# here, by provider. A test may run several compute services in one process.
_supply_by_provider: weakref.WeakValueDictionary[str, FreeDevices] = weakref.WeakValueDictionary()
# The sets that were published last, while a tree refers to them. Every claim publishes all sets. A
# host with many virtual functions has tens of thousands of resources, and Nova takes many
# microseconds to make each.
_published: weakref.WeakValueDictionary[str, DeviceSet] = weakref.WeakValueDictionary()


def resource(provider_uuid: str, address: Device) -> objects.Resource:
    """Return Nova's ``Resource`` object for one GPU or vGPU.

    ``metadata`` stays unset: hosts with conductor and API may lack nova-gpu's classes for it.
    """
    return objects.Resource(
        provider_uuid=provider_uuid,
        resource_class=device.resource_class(address),
        identifier=str(address),
    )


def publish(provider_uuid: str, addresses: Collection[Device], supply: FreeDevices) -> DeviceSet:
    """Return the provider's set of resources, the same object while *addresses* do not change."""
    _supply_by_provider[provider_uuid] = supply
    wanted = frozenset(addresses)
    known = _published.get(provider_uuid)
    if known is None or known.addresses != wanted:
        known = DeviceSet(resource(provider_uuid, address) for address in wanted)
        known.addresses = wanted
        _published[provider_uuid] = known
    return known


def without_free(provider_uuid: str, addresses: Collection[Device]) -> DeviceSet:
    """Return a set of resources for devices that instances have; claims can draw none of them."""
    _supply_by_provider.pop(provider_uuid, None)
    return DeviceSet(resource(provider_uuid, address) for address in addresses)


class DeviceSet(set[Any]):
    """The GPUs of one provider, as ``objects.Resource``; neither set nor elements ever change."""

    addresses: frozenset[Device] = frozenset()

    def __deepcopy__(self, memo: object) -> DeviceSet:
        """Return the set itself: Nova copies the tree in each query, and a copy would be slow."""
        return self

    @functools.cached_property
    def devices(self) -> Mapping[Device, objects.Resource]:
        return {device.parse(member.identifier): member for member in self}

    def __sub__(self, assigned: Set[Any]) -> Pool:
        left = set(self) - set(assigned)
        addresses = frozenset(a for a, item in self.devices.items() if item in left)
        provider_uuid = next((dev.provider_uuid for dev in self), "")
        supply = _supply_by_provider.get(provider_uuid)
        # Without a supply the state of these GPUs is unknown, so none is free.
        usable = supply.usable(provider_uuid, addresses, assigned) if supply else frozenset()
        return Pool(provider_uuid, self.devices, usable, supply, assigned)


class Pool(set[Any]):
    """The free devices from which one claim draws.

    The k-th ``pop()`` chooses the best combination of k GPUs anew, and changes the identifiers of
    the resources that earlier calls returned accordingly. So the claim gets the best k GPUs
    together, not the best single GPU k times. The returned resources are copies of those in the
    set, and Nova hashes them only after the last call.
    """

    def __init__(
        self,
        provider_uuid: str,
        devices: Mapping[Device, objects.Resource],
        free: frozenset[Device],
        supply: FreeDevices | None,
        assigned: Set[Any],
    ) -> None:
        super().__init__(devices[address] for address in free)
        self._provider_uuid = provider_uuid
        self._devices = devices
        self._free = free
        self._supply = supply
        self._assigned = assigned
        self._handed_out: list[objects.Resource] = []
        self._chosen: tuple[Device, ...] = ()

    def pop(self) -> objects.Resource:
        """Return the resource of one more device for the claim."""
        count = len(self._handed_out) + 1
        if self._supply is None or count > len(self._free):
            raise KeyError("pop from an empty pool of GPUs")
        chosen = self._supply.choose(self._provider_uuid, self._free, count)
        back = set(self._chosen) - set(chosen)
        self._supply.hand_out(chosen, back, self._assigned)
        self.difference_update(self._devices[address] for address in chosen)
        self.update(self._devices[address] for address in back)
        self._chosen = chosen
        self._handed_out.append(resource(self._provider_uuid, chosen[-1]))
        for handed_out, address in zip(self._handed_out, chosen, strict=True):
            handed_out.identifier = str(address)
        return self._handed_out[-1]

    def distances(self, own: Collection[objects.Resource], claimant: Claimant) -> list[int]:
        """Return how far devices in *own* and free ones are from the cells, nearest first."""
        return sorted(self._distances(self._free | _devices(own), claimant).values())

    def _distances(self, devices: Collection[Device], claimant: Claimant) -> Mapping[Device, int]:
        if self._supply is None:
            return dict.fromkeys(devices, affinity.IN_CELL)
        return self._supply.distances(self._provider_uuid, devices, claimant)

    def improve(
        self, own: Collection[objects.Resource], claimant: Claimant
    ) -> dict[objects.Resource, objects.Resource]:
        """Exchange devices in *own* for free ones that suit *claimant* better.

        :param own: what an instance that has not started has of this provider
        :returns: the new resource of each that it is to give back
        """
        if self._supply is None:
            return {}
        before = {device.parse(item.identifier): item for item in own}
        chosen = self._supply.improve(
            self._provider_uuid, before.keys(), self._free | before.keys(), claimant
        )
        new = sorted(set(chosen) - before.keys())
        back = sorted(before.keys() - set(chosen))
        self._supply.hand_out(new, back, self._assigned)
        return {
            before[old]: resource(self._provider_uuid, address)
            for old, address in zip(back, new, strict=True)
        }

    def permits(self, own: Collection[objects.Resource], claimant: Claimant) -> bool:
        """Return whether *claimant* may have the devices in *own*, by its affinity."""
        return affinity.FORBIDDEN not in self._distances(_devices(own), claimant).values()

    def swap(
        self,
        own: Collection[objects.Resource],
        claimant: Claimant,
        others: Collection[objects.Resource],
        other: Claimant,
    ) -> dict[objects.Resource, objects.Resource]:
        """Return which devices in *own* to swap for which in *others*, what *other* has.

        The result is empty unless both then may have what they have, by their affinity.
        """
        items = {device.parse(item.identifier): item for item in (*own, *others)}
        here, there = (self._distances(items.keys(), build) for build in (claimant, other))
        if not here.keys() >= items.keys():
            return {}  # a card is gone, which the start of its guest reports

        def preference(dev: Device) -> tuple[int, int]:
            is_forbidden = here[dev] == affinity.FORBIDDEN, there[dev] == affinity.FORBIDDEN
            return is_forbidden[0] - is_forbidden[1], here[dev] - there[dev]

        order = sorted(items, key=lambda dev: (preference(dev), dev))
        new, rest = order[: len(own)], order[len(own) :]
        if affinity.FORBIDDEN in {*(here[dev] for dev in new), *(there[dev] for dev in rest)}:
            return {}
        before = _devices(own)
        pairs = zip(sorted(before.difference(new)), sorted({*new} - before), strict=True)
        return {items[old]: items[dev] for old, dev in pairs}

    def take_back(self, exchanged: Mapping[objects.Resource, objects.Resource]) -> None:
        """Undo :meth:`improve`, whose result could not be saved."""
        old, new = (
            [device.parse(item.identifier) for item in items]
            for items in (exchanged.keys(), exchanged.values())
        )
        if self._supply is not None:
            self._supply.hand_out(old, new, self._assigned)


def _devices(items: Collection[objects.Resource]) -> frozenset[Device]:
    return frozenset(device.parse(item.identifier) for item in items)
