# SPDX-License-Identifier: Apache-2.0
"""The pool from which Nova's resource tracker draws the best GPUs.

``ResourceTracker._claim_resources`` (nova/compute/resource_tracker.py, the same in Nova 32 to 34)
takes what a provider has in its tree, subtracts what is assigned, compares the amount asked for
with what is left and calls ``pop()`` once per unit. So the set in the tree is a
:class:`DeviceSet`, whose subtraction gives a :class:`Pool`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import weakref
from collections.abc import Collection, Mapping, Set
from typing import Any, Protocol

from nova import objects

from nova_gpu.core import device
from nova_gpu.core.device import Device
from nova_gpu.core.flavor.placement_policy import Arrangement
from nova_gpu.core.topology.nearness import Neighbour


@dataclasses.dataclass(frozen=True, slots=True)
class Claimant:
    """Whose claim it is, as far as that matters to which GPUs it gets.

    How these are to lie, and what else the instance has of Nova's own passthrough.
    """

    arrangement: Arrangement
    neighbours: tuple[Neighbour, ...]


class Supply(Protocol):
    """The GPUs behind the sets in the provider tree, by what is known now."""

    @abc.abstractmethod
    def usable(
        self, provider_uuid: str, addresses: Collection[Device], assigned: Set[Any]
    ) -> frozenset[Device]:
        """Return the provider's *addresses* that are well, in no domain, and not held by a start.

        Another product may be at an address now: then it is another provider's as well.

        :param assigned: the tracker's own set of what is assigned of that provider
        """

    @abc.abstractmethod
    def claimant(self) -> Claimant | None:
        """Return whose claim it is, ``None`` where that does not matter."""

    @abc.abstractmethod
    def choose(
        self,
        provider_uuid: str,
        free: Collection[Device],
        count: int,
        claimant: Claimant | None,
    ) -> tuple[Device, ...]:
        """Return the best *count* of *free*, which are the provider's."""

    @abc.abstractmethod
    def hand_out(
        self, addresses: Collection[Device], back: Collection[Device], assigned: Set[Any]
    ) -> None:
        """Hand out *addresses* for a claim, and take *back* the addresses that it had."""


# The sets in the tree carry no state: the tree keeps an old set when a new one has equal elements,
# and deep-copies them, which a lock or a driver would not survive. So the way back to the facts is
# here, by provider. A test may run several compute services in one process.
_supply_by_provider: weakref.WeakValueDictionary[str, Supply] = weakref.WeakValueDictionary()
# What was published last, while a tree has it: every claim publishes all, and on a host with many
# virtual functions there are tens of thousands, each of which takes Nova many microseconds to make.
_published: weakref.WeakValueDictionary[str, DeviceSet] = weakref.WeakValueDictionary()


def resource(provider_uuid: str, address: Device) -> objects.Resource:
    """Return one GPU or vGPU as Nova tracks it.

    ``metadata`` stays unset: the conductor and the API would have to know any class of ours that
    stood there.
    """
    return objects.Resource(
        provider_uuid=provider_uuid,
        resource_class=device.resource_class(address),
        identifier=str(address),
    )


def publish(provider_uuid: str, addresses: Collection[Device], supply: Supply) -> DeviceSet:
    """Return the set that stands for *addresses* in the provider tree."""
    _supply_by_provider[provider_uuid] = supply
    wanted = frozenset(addresses)
    known = _published.get(provider_uuid)
    if known is None or known.addresses != wanted:
        known = DeviceSet(resource(provider_uuid, address) for address in wanted)
        known.addresses = wanted
        _published[provider_uuid] = known
    return known


def without_free(provider_uuid: str, addresses: Collection[Device]) -> DeviceSet:
    """Return a set of *addresses*, which instances have, that gives nothing to a claim."""
    _supply_by_provider.pop(provider_uuid, None)
    return DeviceSet(resource(provider_uuid, address) for address in addresses)


class DeviceSet(set[Any]):
    """The GPUs of one provider, as ``objects.Resource``. It is not changed, nor what is in it."""

    addresses: frozenset[Device] = frozenset()

    def __deepcopy__(self, memo: object) -> DeviceSet:
        """Return itself: the tree copies all that it has whenever it is asked for anything."""
        return self

    @functools.cached_property
    def devices(self) -> Mapping[Device, objects.Resource]:
        return {device.parse(member.identifier): member for member in self}

    def __sub__(self, assigned: Set[Any]) -> Pool:
        left = set(self) - set(assigned)
        addresses = frozenset(a for a, item in self.devices.items() if item in left)
        provider_uuid = next((dev.provider_uuid for dev in self), "")
        supply = _supply_by_provider.get(provider_uuid)
        # Nobody to ask means that nothing is known of these GPUs: none is free.
        usable = supply.usable(provider_uuid, addresses, assigned) if supply else frozenset()
        return Pool(provider_uuid, self.devices, usable, supply, assigned)


class Pool(set[Any]):
    """The devices that one claim can draw.

    Each ``pop()`` solves anew for one GPU more and rewrites the identifiers of the resources that
    it has already handed out to this claim, so that after k of them the k GPUs are the best set of
    k, not the best one k times. What is handed out are copies of what is in the set, and they are
    hashed only after the last pop.
    """

    def __init__(
        self,
        provider_uuid: str,
        devices: Mapping[Device, objects.Resource],
        free: frozenset[Device],
        supply: Supply | None,
        assigned: Set[Any],
    ) -> None:
        super().__init__(devices[address] for address in free)
        self._provider_uuid = provider_uuid
        self._devices = devices
        self._free = free
        self._supply = supply
        self._assigned = assigned
        self._claimant = supply.claimant() if supply and free else None
        self._handed_out: list[objects.Resource] = []
        self._chosen: tuple[Device, ...] = ()

    def pop(self) -> objects.Resource:
        """Draw a device.

        :raises KeyError: when empty, as a set does
        """
        count = len(self._handed_out) + 1
        if self._supply is None or count > len(self._free):
            raise KeyError("pop from an empty pool of GPUs")
        chosen = self._supply.choose(self._provider_uuid, self._free, count, self._claimant)
        back = set(self._chosen) - set(chosen)
        self._supply.hand_out(chosen, back, self._assigned)
        self.difference_update(self._devices[address] for address in chosen)
        self.update(self._devices[address] for address in back)
        self._chosen = chosen
        self._handed_out.append(resource(self._provider_uuid, chosen[-1]))
        for handed_out, address in zip(self._handed_out, chosen, strict=True):
            handed_out.identifier = str(address)
        return self._handed_out[-1]
