# SPDX-License-Identifier: Apache-2.0
"""Groups of a host's cards or vGPUs, as reported to Placement and as claimed by Nova."""

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
    """A device that an instance has. ``grant``: what its way of delivery is told of it."""

    group: Group
    device: Key
    grant: Grant


class Published(pool.Supply, Generic[Group, Key]):
    """A kind of devices in Placement: whole cards or vGPUs.

    It reads nothing: what was found, and who has what, is noted by others, so that a claim never
    waits for it. What of a group is free differs: parts of one card take from one another.
    """

    in_parts: bool
    # To whoever reads why an instance is not started with what it has
    noun: str

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.provider_uuids: dict[GroupKey, str] = {}

    @abc.abstractmethod
    def __bool__(self) -> bool:
        """Return whether this host has any of them."""

    @abc.abstractmethod
    def groups(self) -> Mapping[GroupKey, Group]:
        """Return the groups, by what is known now."""

    def group_of(self, provider_uuid: str) -> Group | None:
        """Return the group that a provider stands for.

        ``None`` where it is not known as one of ours.
        """
        keys = {uuid: key for key, uuid in self.provider_uuids.items()}
        key = keys.get(provider_uuid)
        return None if key is None else self.groups().get(key)

    # What instances have

    def of_this_host(self, resources: Iterable[objects.Resource] | None) -> list[tuple[Group, Key]]:
        """Return the *resources* that are devices of this host, well or not, each with its group.

        After a move they may name another host's devices, whose addresses may be ones of this host
        as well: only the provider tells.
        """
        return [
            (group, self._parse(resource.identifier))
            for resource in resources or ()
            if self.counts(resource)
            and (group := self.group_of(resource.provider_uuid)) is not None
        ]

    def counts(self, resource: objects.Resource) -> bool:
        """Return whether *resource* is one such as these, of whatever host."""
        return bool(resource.resource_class == device.resource_class_in(in_parts=self.in_parts))

    def devices(self, resources: Iterable[objects.Resource] | None) -> frozenset[Key]:
        """Return the devices of :meth:`of_this_host`."""
        return frozenset(key for _, key in self.of_this_host(resources))

    def held(self, resources: Iterable[objects.Resource] | None) -> list[Holding[Group, Key]]:
        """Return what *resources* have of this host, in the order of the devices.

        :raises DeviceUnavailable: where one of them is not here, or cannot be given
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
        """Return the device of a resource."""

    @abc.abstractmethod
    def _unavailable(self, group: Group, key: Key) -> str | None:
        """Return why no instance can get the device, ``None`` if the instance that has it can."""

    @abc.abstractmethod
    def _given(self, group: Group, key: Key) -> Grant:
        """Return what the way of delivery is told of a device that is well."""

    @abc.abstractmethod
    def mismatch(
        self,
        request: FlavorRequest,
        held: Collection[Holding[Group, Key]],
        hypervisor_type: str,
        *,
        is_new: bool,
    ) -> str | None:
        """Return why what an instance holds is not what its flavor asks for, ``None`` where it is.

        :param is_new: whether it is given them now, and did not have them before: what the host can
            no longer tell does not keep instances from what they have
        """

    def apart(
        self, request: FlavorRequest, held: Collection[Holding[Group, Key]], hypervisor_type: str
    ) -> str | None:
        """Return why what is held is not as near each other as the flavor insists on."""
        return None

    # Publishing

    def publish(
        self, tree: nova_provider_tree.ProviderTree, nodename: str, hypervisor_type: str
    ) -> None:
        """Write the groups into the tree, from what is known.

        Runs inside every claim.
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
        """Return the groups for the tree, each with what it offers.

        :param present: those that are there already
        """

    def _recorded(self, uuids: Mapping[GroupKey, str]) -> set[tuple[GroupKey, Device]]:
        """Return what the database counts for instances of these groups."""
        return self._ledger.now.recorded({uuid: key for key, uuid in uuids.items()})

    # As a supply of the pool

    def claimant(self) -> Claimant | None:
        return None

    def hand_out(
        self, addresses: Collection[Device], back: Collection[Device], assigned: Set[Any]
    ) -> None:
        timeout_s = CONF.gpu.claim_grace_period
        self._ledger.claim(addresses, back, assigned, timeout_s)
