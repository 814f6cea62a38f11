# SPDX-License-Identifier: Apache-2.0
"""The base class of the two inventories, whole cards and vGPUs: Placement's groups and claims."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any, Generic, TypeVar

from nova import objects
from nova.compute import provider_tree as nova_provider_tree

from nova_gpu.conf import CONF
from nova_gpu.core import device, exception
from nova_gpu.core.device import Device
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.model import GroupKey, PciAddress
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.delivery.delivery import Grant
from nova_gpu.virt.inventory import pool, provider_tree
from nova_gpu.virt.inventory.pool import Claimant
from nova_gpu.virt.usage.ledger import Ledger

Group = TypeVar("Group")
Key = TypeVar("Key", PciAddress, Slot)


@dataclasses.dataclass(frozen=True, slots=True)
class Holding(Generic[Group, Key]):
    """A device that an instance has, with its group and the object that its delivery needs."""

    group: Group
    device: Key
    grant: Grant


class Published(pool.Supply, Generic[Group, Key]):
    """The inventory of one kind of devices in Placement: whole cards or vGPUs.

    It reads neither the host nor the database, so that a claim never waits: periods and starts
    update its state. The subclasses compute free devices differently, because the parts of one card
    limit each other.
    """

    in_parts: bool
    # The name of the devices in errors
    noun: str

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.provider_uuids: dict[GroupKey, str] = {}

    @abc.abstractmethod
    def __bool__(self) -> bool:
        """Return whether this host has any devices of this kind."""

    @abc.abstractmethod
    def groups(self) -> Mapping[GroupKey, Group]:
        """Return the groups of devices, by the state of the last period."""

    def group_of(self, provider_uuid: str) -> Group | None:
        """Return the group of a provider, ``None`` if it is not a provider of this inventory."""
        keys = {uuid: key for key, uuid in self.provider_uuids.items()}
        key = keys.get(provider_uuid)
        return None if key is None else self.groups().get(key)

    # Devices of instances

    def of_this_host(self, resources: Iterable[objects.Resource] | None) -> list[tuple[Group, Key]]:
        """Return the devices of this host among *resources*, healthy or not, each with its group.

        After a move *resources* may name devices of another host, whose addresses may exist on this
        host as well. So only the provider identifies the host.
        """
        return [
            (group, self._parse(resource.identifier))
            for resource in resources or ()
            if self.counts(resource)
            and (group := self.group_of(resource.provider_uuid)) is not None
        ]

    def counts(self, resource: objects.Resource) -> bool:
        """Return whether *resource* is a device of this kind, on any host."""
        return bool(resource.resource_class == device.resource_class_in(in_parts=self.in_parts))

    def devices(self, resources: Iterable[objects.Resource] | None) -> frozenset[Key]:
        """Return the devices of :meth:`of_this_host`."""
        return frozenset(key for _, key in self.of_this_host(resources))

    def held(self, resources: Iterable[objects.Resource] | None) -> list[Holding[Group, Key]]:
        """Return the devices of this host among *resources*, sorted by device.

        :raises DeviceUnavailable: if one of them is not here, or cannot be given to its instance
        """
        holdings = []
        for group, item in self.of_this_host(resources):
            if reason := self._unavailable(group, item):
                raise exception.DeviceUnavailable(
                    str(item), reason, "repair or replace the card, or move the instance"
                )
            holdings.append(Holding(group, item, self._given(group, item)))
        return sorted(holdings, key=lambda holding: holding.device)

    @abc.abstractmethod
    def _parse(self, identifier: str) -> Key:
        """Return the device that the *identifier* of a resource names."""

    @abc.abstractmethod
    def _unavailable(self, group: Group, key: Key) -> str | None:
        """Return why no instance can get the device; ``None`` if the one that has it can."""

    @abc.abstractmethod
    def _given(self, group: Group, key: Key) -> Grant:
        """Return the object that the delivery needs for a healthy device: a card or a slot."""

    @abc.abstractmethod
    def mismatch(
        self,
        request: FlavorRequest,
        held: Collection[Holding[Group, Key]],
        hypervisor_type: str,
        *,
        is_new: bool,
    ) -> str | None:
        """Return why the held devices do not match the flavor's request; ``None`` if they do.

        :param is_new: whether the instance gets the devices now. For devices that it had before,
            properties that the host can no longer read are not compared.
        """

    def apart(
        self, request: FlavorRequest, held: Collection[Holding[Group, Key]], hypervisor_type: str
    ) -> str | None:
        """Return why the held devices are not as near each other as the flavor requires.

        Return ``None`` if they are.
        """
        return None

    # Publishing

    def publish(
        self, tree: nova_provider_tree.ProviderTree, nodename: str, hypervisor_type: str
    ) -> None:
        """Write the groups into the provider tree, without reading the host.

        Nova calls this inside every claim.
        """
        present = provider_tree.groups_in(tree, nodename, in_parts=self.in_parts)
        if not self.groups() and not present:
            return
        wanted, offer = self._offered(present, hypervisor_type)
        self.provider_uuids = provider_tree.ensure(tree, nodename, present, wanted)
        for key, uuid in self.provider_uuids.items():
            if (group := self.groups().get(key)) is not None:
                provider_tree.publish(tree, uuid, key, offer(group), self)
            else:
                provider_tree.withdraw(tree, uuid, key, self)

    @abc.abstractmethod
    def _offered(
        self, present: Mapping[GroupKey, str], hypervisor_type: str
    ) -> tuple[Iterable[GroupKey], Callable[[Group], provider_tree.Offer]]:
        """Return the groups for the provider tree, and a function that returns a group's offer.

        :param present: the provider UUIDs of the groups that are in the tree already
        """

    def _recorded(self, uuids: Mapping[GroupKey, str]) -> set[tuple[GroupKey, Device]]:
        """Return the devices of these groups that the database counts for instances.

        :param uuids: the provider UUID of each group
        """
        return self._ledger.now.recorded({uuid: key for key, uuid in uuids.items()})

    # As a supply of the pool

    def claimant(self) -> Claimant | None:
        return None

    def hand_out(
        self, addresses: Collection[Device], back: Collection[Device], assigned: Set[Any]
    ) -> None:
        timeout_s = CONF.gpu.claim_grace_period
        self._ledger.claim(addresses, back, assigned, timeout_s)
