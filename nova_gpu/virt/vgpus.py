# SPDX-License-Identifier: Apache-2.0
"""The vGPUs of one compute host: made when a guest starts with them, removed when it is gone."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Iterable

from nova import objects
from oslo_log import log as logging

import nova_gpu.privsep.vgpu
from nova_gpu.core import exception, names
from nova_gpu.core.device import Device
from nova_gpu.core.model import DeliveryMode, GroupKey
from nova_gpu.core.vgpu import Slot
from nova_gpu.core.vgpu_group import VGPUGroup
from nova_gpu.host.roots import Roots
from nova_gpu.virt import vgpu_cards, vgpu_stock
from nova_gpu.virt.made_vgpus import MadeVGPUs
from nova_gpu.virt.occupancy import Occupancy

LOG = logging.getLogger(__name__)


class VGPUs:
    """:param folder: where it is noted what was made"""

    def __init__(self, roots: Roots, folder: pathlib.Path, occupancy: Occupancy) -> None:
        self._roots = roots
        self._occupancy = occupancy
        self._made = MadeVGPUs(folder)
        self.cards = vgpu_cards.VGPUCards(roots)
        self.stock = vgpu_stock.VGPUStock(self.cards, self._made, occupancy)
        # What an earlier service has made may be nobody's by now.
        occupancy.was_used(self._made.instances())

    def __bool__(self) -> bool:
        """Whether this host has any, or had"""
        return bool(self.cards.look.groups or self.stock.provider_uuids or self._made.instances())

    def keys(self) -> list[GroupKey]:
        """The groups, and those in which their cards would be whole"""
        whole = (card.gpu.product for card in self.cards.look.cards.values())
        keys = [GroupKey(each.vendor_id, each.product_id, DeliveryMode.PCI) for each in whole]
        return [*self.cards.look.groups, *dict.fromkeys(keys)]

    def held(self, resources: Iterable[objects.Resource] | None) -> list[tuple[VGPUGroup, Slot]]:
        """What *resources* have of this host, by slot.

        :raises DeviceUnavailable: where one of them is not here, or cannot be given
        """
        found = []
        for slot, group in self._of_this_host(resources):
            card = group.card_of(slot)
            reason = card.ill if card else "no card of this host has it"
            if reason:
                raise exception.DeviceUnavailable(
                    str(slot), reason, "mend or replace the card, or move the instance"
                )
            found.append((group, slot))
        return sorted(found, key=lambda each: each[1])

    def slots(self, resources: Iterable[objects.Resource] | None) -> list[Slot]:
        """The same, whether or not they are well"""
        return sorted(slot for slot, _ in self._of_this_host(resources))

    def _of_this_host(
        self, resources: Iterable[objects.Resource] | None
    ) -> list[tuple[Slot, VGPUGroup]]:
        return [
            (Slot.parse(each.identifier), group)
            for each in resources or ()
            if each.resource_class == names.VGPU_RESOURCE_CLASS
            and (group := self.stock.group_of(each.provider_uuid))
        ]

    # Made and removed

    def make(self, instance_uuid: str, slots: Iterable[Slot]) -> None:
        """What the instance has at *slots* is there when it returns.

        :raises DeviceUnavailable: where one cannot be made now
        """
        for slot in slots:
            if self.cards.look.is_made(slot, self._made.instances().get(slot)):
                other = self._made.instances()[slot]
                if other != instance_uuid:
                    raise exception.DeviceUnavailable(
                        str(slot),
                        "the vGPU of an instance that is gone is still there",
                        "see why it was not removed in nova-compute's log",
                        other,
                    )
            try:
                self._made.add(slot, instance_uuid)
                nova_gpu.privsep.vgpu.make(str(slot), instance_uuid)
            except OSError as error:
                raise exception.DeviceUnavailable(
                    str(slot), f"it cannot be noted that it is made: {error}", "mend that first"
                ) from error
            finally:
                self.cards.read_again(slot)

    def make_again(self) -> None:
        """At service start: a host boot has removed what instances have, and nobody else is to
        have its room meanwhile."""
        keys = {uuid: key for key, uuid in self.stock.provider_uuids.items()}
        owners = self._occupancy.owners(keys) if keys else {}
        for slot, owner in owners.items():
            if isinstance(slot, Slot) and not self.cards.look.is_made(slot, owner.instance_uuid):
                try:
                    self.make(owner.instance_uuid, [slot])
                except Exception as error:  # what privsep itself may raise must not end the service
                    LOG.error("vGPU %s is not made again: %s", slot, error)

    def release(self, devices: Collection[Device], instance_uuid: str | None = None) -> None:
        """Removes what is at those of *devices* that are slots, where they are nobody's now.

        What cannot be removed stays out of the pool, and is tried again.

        :param instance_uuid: who had them, where that is known
        """
        for slot in devices:
            if isinstance(slot, Slot):
                self._release(slot, instance_uuid or self._made.instances().get(slot))

    def _release(self, slot: Slot, instance_uuid: str | None) -> None:
        try:
            with self._occupancy.clean(slot):
                if instance_uuid is not None:
                    nova_gpu.privsep.vgpu.remove(str(slot), instance_uuid)
                    self._made.remove(slot, instance_uuid)
                self.cards.read_again(slot)
                self._occupancy.cleaned(slot)
        except exception.DeviceUnavailable:
            return  # another guest has it, or it is being removed already
        except Exception as error:  # also what privsep itself may raise
            LOG.error("vGPU %s is kept from instances until it is removed: %s", slot, error)
        else:
            LOG.info("vGPU %s is free", slot)
