# SPDX-License-Identifier: Apache-2.0
"""Nova's assignment of this host's devices to an instance, whole cards and vGPUs alike."""

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
    """Which devices are an instance's, told by the providers of this host's groups.

    Guests are resumed before the first provider tree is made: then what was kept is asked, or
    Placement, of the groups, with those of vGPUs that ``vgpu_keys`` has.
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
        """Return whether this host has any, whole or in parts."""
        return any(self.supplies)

    def held(
        self, resources: Iterable[objects.Resource] | None
    ) -> Mapping[Supply, list[Holding[Any, Any]]]:
        """Return what *resources* have of this host, of whole cards and of vGPUs.

        :raises DeviceUnavailable: where one of them is not here, or cannot be given
        :raises ProvidersUnknown: if it is unknown which providers are this host's
        """
        return {supply: self.held_of(supply, resources) for supply in self.supplies}

    def held_of(
        self, supply: Published[Group, Key], resources: Iterable[objects.Resource] | None
    ) -> list[Holding[Group, Key]]:
        """Return what *resources* have of one of them, as :meth:`held`."""
        return supply.held(resources) if self._concern(supply, resources) else []

    def devices(self, resources: Iterable[objects.Resource] | None) -> list[Device]:
        """Return the *resources* that are devices of this host, well or not, whole cards first.

        :raises ProvidersUnknown: as :meth:`held`
        """
        return [
            dev
            for supply in self.supplies
            if self._concern(supply, resources)
            for dev in sorted(supply.devices(resources))
        ]

    def _concern(self, supply: Supply, resources: Iterable[objects.Resource] | None) -> bool:
        """Return whether *resources* may be of this host.

        Of other instances nothing is asked about them.
        """
        if not any(supply.counts(resource) for resource in resources or ()) or not supply:
            return False
        self.ask_for_providers()
        return True

    # vGPUs of Nova's own ([devices]enabled_mdev_types), of the same resource class as ours: its
    # driver would make and render ours as well.

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
        """Return which mediated devices *uuids* of the *instance* Nova itself made.

        Without an instance *uuids* are those of all, and Nova looks which devices are free, or, in
        2024.1, which it has to make again after a host boot. On a host with vGPUs of ours it gets
        all of them where it has types of its own, otherwise none.
        """
        if not uuids or not self.parts:
            return uuids
        if instance is None:
            return uuids if CONF.devices.enabled_mdev_types else {}
        self.ask_for_providers()
        # What the instance has, and what its domain names or named until it was taken away
        named = device.slots(ledger.now.kept_by(instance.uuid))
        slots = named | self.parts.devices(instance.resources)
        ours = {device_uuid(instance.uuid, slot) for slot in slots}
        return {uuid: guest for uuid, guest in uuids.items() if uuid not in ours}

    # Providers

    def provider_uuids(self) -> dict[GroupKey, str]:
        """Return the providers of all groups, by what is known."""
        return {
            key: uuid for supply in self.supplies for key, uuid in supply.provider_uuids.items()
        }

    def keep_providers(self, nodename: str) -> None:
        """Note the providers for the next start of the service.

        Runs inside every claim.
        """
        self.providers.keep(nodename, self.provider_uuids())

    def ask_for_providers(self) -> None:
        """Look up which providers stand for this host's groups, once.

        :raises ProvidersUnknown: if that is unknown
        """
        if any(supply.provider_uuids for supply in self.supplies):
            return  # without asking libvirt for the node's name: this is in the way of every start
        uuids = self.providers.of(
            self.placement(), self.nodename(), (*self.whole.groups(), *self.vgpu_keys())
        )
        for supply in self.supplies:
            own = {key: uuids[key] for key in uuids if key.is_in_parts is supply.in_parts}
            supply.provider_uuids.update(own)
