# SPDX-License-Identifier: Apache-2.0
"""The devices of this host that Nova's records assign to an instance: whole cards and vGPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from nova import exception as nova_exception
from nova import objects

from nova_gpu.conf import CONF
from nova_gpu.core import device, names
from nova_gpu.core.device import Device
from nova_gpu.core.model import GroupKey
from nova_gpu.core.vgpu.vgpu import device_uuid
from nova_gpu.virt.inventory import stranding
from nova_gpu.virt.inventory.base_inventory import DeviceInventory, GroupT, Holding, KeyT
from nova_gpu.virt.inventory.card_inventory import CardInventory
from nova_gpu.virt.inventory.provider_tree import Providers
from nova_gpu.virt.inventory.vgpu_inventory import VGPUInventory
from nova_gpu.virt.usage.ledger import Ledger

AnyInventory: TypeAlias = DeviceInventory[Any, Any]

_SCHEDULED_TO_STOCK = (
    "it was scheduled to vGPUs of a driver that this host does not run any more; schedule it anew"
)


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceDevices:
    """A reader of the devices that Nova's records assign to instances on this host.

    A ``Resource`` of an instance is a device of this host if its provider is one of this host's GPU
    groups. nova-compute resumes guests before it makes the first provider tree. Until then the
    providers' UUIDs come from the file that the last run of the service wrote, or else from
    Placement.

    :param vgpu_keys: return the keys of this host's vGPU groups, and of the groups that the same
        cards would form if they were offered whole
    :param placement: return Nova's report client
    """

    card_inventory: CardInventory
    vgpu_inventory: VGPUInventory
    providers: Providers
    vgpu_keys: Callable[[], Iterable[GroupKey]]
    placement: Callable[[], Any]
    nodename: Callable[[], str]

    @property
    def supplies(self) -> tuple[AnyInventory, ...]:
        return self.card_inventory, self.vgpu_inventory

    def __bool__(self) -> bool:
        """Return whether this host has any whole cards or vGPUs, or had some."""
        return any(self.supplies)

    def free(self) -> int:
        """Return the number of free whole cards, and of divided cards that have a free vGPU."""
        return len(self.card_inventory.free()) + self.vgpu_inventory.divided().free

    def left(self) -> tuple[float, float]:
        """Return the number of free vCPUs and the MiB of free memory of this host."""
        return stranding.left(self.placement(), self.nodename())

    def held(
        self, resources: Iterable[objects.Resource] | None
    ) -> Mapping[AnyInventory, list[Holding[Any, Any]]]:
        """Return this host's devices among an instance's *resources*, by inventory.

        :raises DeviceUnavailable: if one of the devices is missing from this host, or has a reason
            against it that applies to its own instance
        :raises ProvidersUnknown: if the providers of this host's groups are unknown
        """
        return {supply: self.held_of(supply, resources) for supply in self.supplies}

    def held_of(
        self, supply: DeviceInventory[GroupT, KeyT], resources: Iterable[objects.Resource] | None
    ) -> list[Holding[GroupT, KeyT]]:
        """Return this host's devices of one inventory among an instance's *resources*."""
        return supply.held(resources) if self._may_include(supply, resources) else []

    def devices(self, resources: Iterable[objects.Resource] | None) -> list[Device]:
        """Return this host's devices among *resources*, faulty ones included, whole cards first."""
        return [
            dev
            for supply in self.supplies
            if self._may_include(supply, resources)
            for dev in sorted(supply.devices(resources))
        ]

    def _may_include(
        self, supply: AnyInventory, resources: Iterable[objects.Resource] | None
    ) -> bool:
        """Return whether *resources* have devices like those of *supply*; ask for the providers."""
        if not any(supply.counts(resource) for resource in resources or ()) or not supply:
            return False
        self.ask_for_providers()
        return True

    # Nova's own vGPUs ([devices]enabled_mdev_types) have the same resource class as those of
    # nova-gpu. Without the methods below Nova's driver would also make and render nova-gpu's.

    def allocations_of_others(self, allocations: Any) -> Any:
        """Return an instance's *allocations*, except those from nova-gpu's vGPU providers here.

        The result is for Nova's driver, which makes a mediated device for each vGPU in it. Where
        [devices]enabled_mdev_types is empty, it would make none, and start the guest without. So
        an instance is refused that was scheduled to stock Nova's vGPUs of this host, before
        nova-gpu took its cards over.

        :raises nova.exception.ComputeResourcesUnavailable: if so
        """
        has_any = any(
            names.VGPU_RESOURCE_CLASS in allocation["resources"]
            for allocation in (allocations or {}).values()
        )
        if not has_any or not self.vgpu_inventory:
            return allocations
        self.ask_for_providers()
        ours = set(self.vgpu_inventory.provider_uuids.values())
        if not ours & allocations.keys() and not CONF.devices.enabled_mdev_types:
            raise nova_exception.ComputeResourcesUnavailable(reason=_SCHEDULED_TO_STOCK)
        return {uuid: allocations[uuid] for uuid in allocations if uuid not in ours}

    def devices_of_others(
        self, instance: objects.Instance | None, uuids: dict[str, str], ledger: Ledger
    ) -> dict[str, str]:
        """Return *uuids* without the mediated devices that nova-gpu made for *instance*.

        The result is for Nova's driver. If *instance* is ``None``, *uuids* are those of all guests:
        Nova looks for unused devices, or in 2024.1 for devices to make again after a host boot. On
        a host with nova-gpu's vGPUs the result is then *uuids* unchanged if
        ``[devices]enabled_mdev_types`` names any types, and else empty.

        :param uuids: the UUID of the guest, by the UUID of the mediated device
        """
        if not uuids or not self.vgpu_inventory:
            return uuids
        if instance is None:
            return uuids if CONF.devices.enabled_mdev_types else {}
        self.ask_for_providers()
        slots = self.vgpu_inventory.devices(instance.resources)
        # Its domain names what it has, or had until its removal; and what it has by stock Nova,
        # if it was given back and nova-compute is started before that is done for all instances.
        if slots or not _asks_stock_alone(instance.flavor):
            slots |= device.slots(ledger.now.kept_by(instance.uuid))
        ours = {device_uuid(instance.uuid, slot) for slot in slots}
        return {uuid: guest for uuid, guest in uuids.items() if uuid not in ours}

    # Providers

    def provider_uuids(self) -> dict[GroupKey, str]:
        """Return the UUIDs of this host's providers by group; empty while they are unknown."""
        return {
            key: uuid for supply in self.supplies for key, uuid in supply.provider_uuids.items()
        }

    def classes(self) -> dict[str, tuple[str, ...]]:
        """Return the classes of which each device of a provider takes one, by the provider's UUID.

        They are Placement's class of GPUs or vGPUs, and that of the model where it is counted.
        """
        return {
            uuid: supply.classes.get(uuid) or (device.resource_class_of(key),)
            for supply in self.supplies
            for key, uuid in supply.provider_uuids.items()
        }

    def keep_providers(self, nodename: str) -> None:
        """Write the providers' UUIDs to the file, for the next start of nova-compute."""
        self.providers.keep(nodename, self.provider_uuids())

    def ask_for_providers(self) -> None:
        """Read the providers' UUIDs from the file or Placement, unless they are known.

        :raises ProvidersUnknown: if neither the file nor Placement has them
        """
        if any(supply.provider_uuids for supply in self.supplies):
            return  # before libvirt is asked for the node's name, because every start comes here
        keys = (*self.card_inventory.groups(), *self.vgpu_keys())
        # Instances may have a card that is offered apart now in the provider of all boards.
        keys += tuple(key._replace(board=None) for key in keys if key.board)
        uuids = self.providers.of(self.placement(), self.nodename(), dict.fromkeys(keys))
        for key, uuid in uuids.items():
            supply: AnyInventory = self.vgpu_inventory if key.is_in_parts else self.card_inventory
            supply.provider_uuids[key] = uuid
        self.card_inventory.keep_recorded()


def _asks_stock_alone(flavor: objects.Flavor) -> bool:
    """Return whether the flavor asks for vGPUs, and not in nova-gpu's words."""
    specs = flavor.extra_specs
    own = any(name in (names.VGPUS, names.GPUS) or name.startswith("gpu:") for name in specs)
    return not own and any(name.startswith("resources") for name in specs)
