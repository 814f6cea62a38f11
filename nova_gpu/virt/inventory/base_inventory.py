# SPDX-License-Identifier: Apache-2.0
"""The base class of the two inventories that are published to Placement: whole cards and vGPUs."""

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
from nova_gpu.virt.usage.ledger import Ledger

GroupT = TypeVar("GroupT")
KeyT = TypeVar("KeyT", PciAddress, Slot)


@dataclasses.dataclass(frozen=True, slots=True)
class Holding(Generic[GroupT, KeyT]):
    """A device that an instance has, with its group.

    ``grant`` is the object that the device's delivery to the guest takes: a card or a slot.
    """

    group: GroupT
    device: KeyT
    grant: Grant


class DeviceInventory(pool.FreeDevices, Generic[GroupT, KeyT]):
    """The inventory of one kind of devices in Placement: whole cards or vGPUs.

    It reads neither the host nor the database, so that a claim never waits: periods and starts
    update its state. The subclasses compute free devices differently, because the vGPUs of one card
    share its capacity.
    """

    in_parts: bool
    # The name of the devices in errors
    noun: str
    # Parse the identifier of an objects.Resource
    _parse: Callable[[str], KeyT]

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.provider_uuids: dict[GroupKey, str] = {}
        # By provider, the resource classes of which each device takes one
        self.classes: dict[str, tuple[str, ...]] = {}

    @abc.abstractmethod
    def __bool__(self) -> bool:
        """Return whether this host has any devices of this kind."""

    @abc.abstractmethod
    def groups(self) -> Mapping[GroupKey, GroupT]:
        """Return the groups that the last inspection found."""

    def group_of(self, provider_uuid: str) -> GroupT | None:
        """Return the group of a provider, ``None`` if it is no provider of this inventory."""
        keys = {uuid: key for key, uuid in self.provider_uuids.items()}
        key = keys.get(provider_uuid)
        return None if key is None else self.groups().get(key)

    # Devices of instances

    def _of_this_host(
        self, resources: Iterable[objects.Resource] | None
    ) -> list[tuple[GroupT, KeyT]]:
        # After a move, another host's devices may be among them, with the addresses of devices here
        return [
            (group, self._parse(resource.identifier))
            for resource in resources or ()
            if self.counts(resource)
            and (group := self.group_of(resource.provider_uuid)) is not None
        ]

    def counts(self, resource: objects.Resource) -> bool:
        """Return whether *resource* is a device of this kind, on any host."""
        return bool(resource.resource_class == device.resource_class_in(in_parts=self.in_parts))

    def devices(self, resources: Iterable[objects.Resource] | None) -> frozenset[KeyT]:
        """Return this inventory's devices among *resources*, faulty ones included."""
        return frozenset(key for _, key in self._of_this_host(resources))

    def held(self, resources: Iterable[objects.Resource] | None) -> list[Holding[GroupT, KeyT]]:
        """Return this inventory's devices among an instance's *resources*, sorted by device.

        :raises DeviceUnavailable: if one of them is missing from this host, or has a reason against
            it that applies to its own instance
        """
        holdings = []
        for group, item in self._of_this_host(resources):
            if reason := self._obstacle(group, item):
                raise exception.DeviceUnavailable(
                    str(item), reason, "repair or replace the card, or move the instance"
                )
            holdings.append(Holding(group, item, self._grant(group, item)))
        return sorted(holdings, key=lambda holding: holding.device)

    @abc.abstractmethod
    def _obstacle(self, group: GroupT, key: KeyT) -> str | None:
        """Return why even the instance that has the device cannot start with it, else ``None``."""

    @abc.abstractmethod
    def _grant(self, group: GroupT, key: KeyT) -> Grant:
        """Return the object that the delivery of an available device takes: a card or a slot."""

    @abc.abstractmethod
    def mismatch(
        self,
        request: FlavorRequest,
        held: Collection[Holding[GroupT, KeyT]],
        hypervisor_type: str,
        *,
        is_new: bool,
    ) -> str | None:
        """Return why an instance's devices do not match its flavor's request, else ``None``.

        :param is_new: whether the instance gets the devices now; if it had them before, facts that
            NVML may report in one run of nova-compute only are not compared
        """

    def apart(
        self, request: FlavorRequest, held: Collection[Holding[GroupT, KeyT]], hypervisor_type: str
    ) -> str | None:
        """Return why an instance's devices are farther apart than its flavor allows, else ``None``.

        vGPUs may be anywhere.
        """
        return None

    @abc.abstractmethod
    def remote(
        self, held: Collection[Holding[GroupT, KeyT]], claimant: pool.Claimant
    ) -> str | None:
        """Return why an instance's devices are too far from its NUMA cells, ``None`` if not."""

    # Publishing

    def publish(
        self, tree: nova_provider_tree.ProviderTree, nodename: str, hypervisor_type: str
    ) -> None:
        """Write the groups into the provider tree, as the last inspection found them.

        Nova calls this inside every claim, so the host is not read.
        """
        present = provider_tree.groups_in(tree, nodename, in_parts=self.in_parts)
        if not self.groups() and not present:
            return
        wanted, offer = self._offer(present, hypervisor_type)
        self.provider_uuids = provider_tree.ensure(tree, nodename, present, wanted)
        for key, uuid in self.provider_uuids.items():
            if (group := self.groups().get(key)) is not None:
                self.classes[uuid] = provider_tree.publish(tree, uuid, key, offer(group), self)
            else:
                provider_tree.withdraw(tree, uuid, key, self)

    @abc.abstractmethod
    def _offer(
        self, present: Mapping[GroupKey, str], hypervisor_type: str
    ) -> tuple[Iterable[GroupKey], Callable[[GroupT], provider_tree.ProviderData]]:
        """Return the groups that need a provider, and a function that returns a group's offer."""

    def _recorded(self, uuids: Mapping[GroupKey, str]) -> set[tuple[GroupKey, Device]]:
        """Return the devices of the groups in *uuids* that the database counts for instances."""
        return self._ledger.now.recorded({uuid: key for key, uuid in uuids.items()})

    def hand_out(
        self, addresses: Collection[Device], unneeded: Collection[Device], assigned: Set[Any]
    ) -> None:
        self._ledger.claim(addresses, unneeded, assigned, CONF.gpu.claim_grace_period)
