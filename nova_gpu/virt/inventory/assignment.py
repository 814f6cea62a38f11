# SPDX-License-Identifier: Apache-2.0
"""The devices of this host that Nova assigns to an instance, whole cards and vGPUs alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from nova import objects

from nova_gpu.conf import CONF
from nova_gpu.core import device, names
from nova_gpu.core.device import Device
from nova_gpu.core.model import GroupKey
from nova_gpu.core.vgpu.vgpu import device_uuid
from nova_gpu.virt.inventory.card_inventory import CardInventory
from nova_gpu.virt.inventory.provider_tree import Providers
from nova_gpu.virt.inventory.published import Group, Holding, Key, Published
from nova_gpu.virt.inventory.vgpu_inventory import VGPUInventory
from nova_gpu.virt.usage.ledger import Ledger

Supply: TypeAlias = Published[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Assigned:
    """The devices of each instance, identified by the resource providers of this host's groups.

    Guests are resumed before Nova makes the first provider tree. Until then the providers come from
    the file of an earlier service, or else from Placement.

    :param whole: the inventory of whole cards
    :param parts: the inventory of vGPUs
    :param providers: the file with the providers of an earlier service
    :param vgpu_keys: return the keys of this host's vGPU groups, and of the groups that their cards
        would be in as whole cards
    :param placement: return Nova's report client
    :param nodename: return the name of this compute node
    """

    whole: CardInventory
    parts: VGPUInventory
    providers: Providers
    vgpu_keys: Callable[[], Iterable[GroupKey]]
    placement: Callable[[], Any]
    nodename: Callable[[], str]

    @property
    def supplies(self) -> tuple[Supply, ...]:
        return self.whole, self.parts

    def __bool__(self) -> bool:
        """Return whether this host has any GPUs, whole or in parts."""
        return any(self.supplies)

    def held(
        self, resources: Iterable[objects.Resource] | None
    ) -> Mapping[Supply, list[Holding[Any, Any]]]:
        """Return this host's devices among *resources*, by inventory: whole cards and vGPUs.

        :raises DeviceUnavailable: if one of them is not here, or cannot be given to its instance
        :raises ProvidersUnknown: if the providers of this host's groups are unknown
        """
        return {supply: self.held_of(supply, resources) for supply in self.supplies}

    def held_of(
        self, supply: Published[Group, Key], resources: Iterable[objects.Resource] | None
    ) -> list[Holding[Group, Key]]:
        """Return the devices of one inventory among *resources*.

        :raises DeviceUnavailable, ProvidersUnknown: as :meth:`held`
        """
        return supply.held(resources) if self._concern(supply, resources) else []

    def devices(self, resources: Iterable[objects.Resource] | None) -> list[Device]:
        """Return this host's devices among *resources*, healthy or not, whole cards first.

        :raises ProvidersUnknown: as :meth:`held`
        """
        return [
            dev
            for supply in self.supplies
            if self._concern(supply, resources)
            for dev in sorted(supply.devices(resources))
        ]

    def _concern(self, supply: Supply, resources: Iterable[objects.Resource] | None) -> bool:
        """Return whether *resources* may include devices of *supply*.

        If so, look up the providers first; an instance without GPUs does not cause that look-up.

        :raises ProvidersUnknown: as :meth:`held`
        """
        if not any(supply.counts(resource) for resource in resources or ()) or not supply:
            return False
        self.ask_for_providers()
        return True

    # Nova's own vGPUs ([devices]enabled_mdev_types) have the same resource class as those of
    # nova-gpu. Without the methods below Nova's driver would also make and render nova-gpu's.

    def allocations_of_others(self, allocations: Any) -> Any:
        """Return the allocations of an instance, except those of this host's vGPU groups."""
        has_any = any(
            names.VGPU_RESOURCE_CLASS in allocation["resources"]
            for allocation in (allocations or {}).values()
        )
        if not has_any or not self.parts:
            return allocations
        self.ask_for_providers()
        ours = set(self.parts.provider_uuids.values())
        return {uuid: allocations[uuid] for uuid in allocations if uuid not in ours}

    def devices_of_others(
        self, instance: objects.Instance | None, uuids: dict[str, str], ledger: Ledger
    ) -> dict[str, str]:
        """Return those mediated devices *uuids* of the *instance* that Nova itself made.

        Without an instance, *uuids* are those of all instances: Nova determines the free devices,
        or in 2024.1 those that it must make again after a host boot. On a host with nova-gpu's
        vGPUs the result then has all of them if Nova has types of its own, and is otherwise empty.

        :param uuids: the UUID of the guest, by the UUID of the mediated device
        """
        if not uuids or not self.parts:
            return uuids
        if instance is None:
            return uuids if CONF.devices.enabled_mdev_types else {}
        self.ask_for_providers()
        # The instance's vGPUs, and those that its domain names, or named until its removal
        named = device.slots(ledger.now.kept_by(instance.uuid))
        slots = named | self.parts.devices(instance.resources)
        ours = {device_uuid(instance.uuid, slot) for slot in slots}
        return {uuid: guest for uuid, guest in uuids.items() if uuid not in ours}

    # Providers

    def provider_uuids(self) -> dict[GroupKey, str]:
        """Return the UUIDs of the known providers, by group."""
        return {
            key: uuid for supply in self.supplies for key, uuid in supply.provider_uuids.items()
        }

    def keep_providers(self, nodename: str) -> None:
        """Write the providers to the file for the next start of the service.

        Nova calls this inside every claim.
        """
        self.providers.keep(nodename, self.provider_uuids())

    def ask_for_providers(self) -> None:
        """Look up the providers of this host's groups, unless they are known.

        :raises ProvidersUnknown: if neither the file nor Placement has them
        """
        if any(supply.provider_uuids for supply in self.supplies):
            return  # before libvirt is asked for the node's name, because every start comes here
        uuids = self.providers.of(
            self.placement(), self.nodename(), (*self.whole.groups(), *self.vgpu_keys())
        )
        for supply in self.supplies:
            own = {key: uuids[key] for key in uuids if key.is_in_parts is supply.in_parts}
            supply.provider_uuids.update(own)
