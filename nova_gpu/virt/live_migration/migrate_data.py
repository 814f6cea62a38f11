# SPDX-License-Identifier: Apache-2.0
"""What the two hosts of a live migration tell each other about a guest's vGPUs, and common steps.

Nova's resource tracker claims resources at the destination only if the drivers of both hosts
declare that they use the claim. Nova's own driver does so for instances with a NUMA topology, this
one for instances with vGPUs. The vGPUs at the source are then in ``old_resources`` of the
instance's migration context, and those at the destination in ``new_resources``. The hosts write
into two fields of Nova's ``LibvirtLiveMigrateData``:

``target_mdevs``: present and empty, it tells the source that the destination runs this driver.
Later it is Nova's map of mediated devices. In all releases, its presence makes Nova clean up at
both ends.

``source_mdev_types``: a text for each of the guest's vGPUs at the source, which the destination
compares with the texts about its own (:mod:`~nova_gpu.virt.live_migration.compatibility`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable

from nova import exception as nova_exception
from nova import objects
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import utils as libvirt_utils
from oslo_log import log as logging

from nova_gpu.core import exception, names
from nova_gpu.core.operation_refusals import COLD_REMEDY
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_group import VGPUGroup
from nova_gpu.host.roots import Roots
from nova_gpu.virt.card_sets import Sets
from nova_gpu.virt.delivery.vgpu_deliveries import HostdevParts
from nova_gpu.virt.expected_errors import expected
from nova_gpu.virt.inventory.assignment import InstanceDevices
from nova_gpu.virt.inventory.base_inventory import Holding
from nova_gpu.virt.lifecycle.start_steps import Starts
from nova_gpu.virt.lifecycle.vgpus import VGPUs
from nova_gpu.virt.live_migration import compatibility

LOG = logging.getLogger(__name__)

HeldVGPUs = Collection[Holding[VGPUGroup, Slot]]


def recorded(resources: Iterable[objects.Resource] | None) -> list[Slot]:
    """Return the slots of the vGPUs among *resources*, of any host, sorted by type."""
    recordings = (
        Slot.parse(resource.identifier)
        for resource in resources or ()
        if resource.resource_class == names.VGPU_RESOURCE_CLASS
    )
    return sorted(recordings, key=lambda slot: (slot.type_id, slot))


def pairs(instance: objects.Instance) -> list[tuple[Slot, Slot]]:
    """Return pairs of slots: a vGPU of the instance at the source, and the one that replaces it."""
    moving = instance.migration_context
    old, new = recorded(moving.old_resources), recorded(moving.new_resources)
    return list(zip(old, new, strict=True))


def refused(reason: str) -> nova_exception.MigrationPreCheckError:
    """Return the error that refuses a live migration; its text advises a cold migration.

    If the destination raises it, Nova's conductor tries another destination.
    """
    error = nova_exception.MigrationPreCheckError(reason=f"{reason}; {COLD_REMEDY}")
    return expected(error)


@dataclasses.dataclass(frozen=True, slots=True)
class Moves:
    """One host's part in live migrations of guests with vGPUs, as source or destination."""

    assigned: InstanceDevices
    starts: Starts
    vgpus: VGPUs
    sets: Sets
    roots: Roots
    nodename: Callable[[], str]

    def are_moved(self, instance: objects.Instance) -> bool:
        """Return whether the instance has vGPUs, on any host, and this host has vGPUs too."""
        return bool(self.vgpus) and bool(recorded(instance.resources))

    def movable(self, slot: Slot) -> HostdevParts:
        """Return the delivery of the vGPU at *slot*; deliveries to KVM guests have live migration.

        :raises NotImplementedError: for a device of a container, whose migration was refused before
        """
        way = self.vgpus.way(slot)
        if not isinstance(way, HostdevParts):
            raise NotImplementedError
        return way

    def unmovable(self, slot: Slot) -> str | None:
        """Return why its card rules out a live migration of the vGPU at *slot*, or ``None``."""
        cards = (
            card.gpu.address for card in self.vgpus.cards.look.cards.values() if card.has(slot)
        )
        card = next(cards, None)
        return None if card is None else self.sets.unmovable(card, slot)

    def described(self, holdings: HeldVGPUs) -> dict[Slot, str]:
        """Return the text about each vGPU that hosts compare (:func:`compatibility.not_alike`)."""
        cards = {holding.device: holding.group.card_of(holding.device) for holding in holdings}
        gpus = {card.gpu.address: card.gpu for card in cards.values() if card}
        facts = compatibility.facts_of(gpus.values(), self.roots)
        texts = {}
        for slot, group in ((holding.device, holding.group) for holding in holdings):
            texts[slot] = f"{slot.type_id} of {group.product.key}, {self.vgpus.way(slot).part_name}"
            if card := cards[slot]:
                texts[slot] += facts.get(card.gpu.address, "")
        return texts

    def stays(self, instance: objects.Instance) -> None:
        """Reserve the vGPUs of a guest that runs here after a live migration, or still runs here.

        They stay reserved until libvirt lists them in the guest's domain.
        """
        # Nova makes this its host next, and has ended its guest on the source.
        self.starts.reporter.begins(instance.uuid)
        if not self.vgpus:
            return
        moving = instance.migration_context
        resources = [*(instance.resources or ()), *((moving and moving.new_resources) or ())]
        if not (here := self.assigned.vgpu_inventory.devices(resources)):
            return
        # Reserved first: this service may not know them, if an earlier one made them.
        self.starts.ledger.keep(instance.uuid, here)
        try:
            with self.starts.holding(instance.uuid, frozenset()):
                pass
        except exception.GuestError as error:
            LOG.error(
                "Cannot read its vGPUs from libvirt, will keep all that it may have: %s",
                error,
                instance=instance,
            )

    def refuse_too_old(self, instance: objects.Instance, *, is_able: bool) -> None:
        """Refuse the live migration of a guest with vGPUs if libvirt or QEMU is too old here.

        :param is_able: whether Nova considers this host's libvirt and QEMU new enough
        :raises nova.exception.MigrationPreCheckError: if they are too old and the instance has
            vGPUs
        """
        if not is_able and self.are_moved(instance):
            libvirt = libvirt_utils.version_to_string(
                libvirt_driver.MIN_MDEV_LIVEMIG_LIBVIRT_VERSION
            )
            qemu = libvirt_utils.version_to_string(libvirt_driver.MIN_MDEV_LIVEMIG_QEMU_VERSION)
            raise refused(
                f"host {self.nodename()} cannot move a running guest with vGPUs, which takes "
                f"libvirt {libvirt} and QEMU {qemu} at both ends"
            )
