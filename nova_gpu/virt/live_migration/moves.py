# SPDX-License-Identifier: Apache-2.0
"""What the two hosts of a live migration say to each other of a guest's vGPUs, and both do.

Nova's resource tracker claims at the destination of one as it does for any other move, but only
where both drivers say that they look at the claim; Nova's own does for instances with a NUMA
topology. So what the instance has is in ``old_resources`` of its migration context, and what it
will have in ``new_resources``. The rest is in fields of Nova's ``LibvirtLiveMigrateData``:

``target_mdevs``: there, and empty, it says that the destination's driver is this one. Then it is
Nova's map of mediated devices, and in all releases it has Nova clean up at both ends.

``source_mdev_types``: what the guest has, in words that the destination compares with its own.
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
from nova_gpu.core.refusal_texts import COLD_REMEDY
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_group import VGPUGroup
from nova_gpu.host.roots import Roots
from nova_gpu.virt.inventory.assigned import Assigned
from nova_gpu.virt.inventory.published import Holding
from nova_gpu.virt.lifecycle import refusals
from nova_gpu.virt.lifecycle.starts import Starts
from nova_gpu.virt.lifecycle.vgpus import VGPUs
from nova_gpu.virt.live_migration import likeness

LOG = logging.getLogger(__name__)

Held = Collection[Holding[VGPUGroup, Slot]]


def recorded(resources: Iterable[objects.Resource] | None) -> list[Slot]:
    """The vGPUs among *resources*, of whatever host, those of one type beside each other"""
    found = (
        Slot.parse(each.identifier)
        for each in resources or ()
        if each.resource_class == names.VGPU_RESOURCE_CLASS
    )
    return sorted(found, key=lambda slot: (slot.type_id, slot))


def pairs(instance: objects.Instance) -> list[tuple[Slot, Slot]]:
    """What the instance has at the source, each with what it will have in its place"""
    moving = instance.migration_context
    old, new = recorded(moving.old_resources), recorded(moving.new_resources)
    return list(zip(old, new, strict=True))


def refused(reason: str) -> nova_exception.MigrationPreCheckError:
    """The instance goes on as it was, and its user reads what to do instead. Of a destination that
    says so the conductor tries another."""
    said = nova_exception.MigrationPreCheckError(reason=f"{reason}; {COLD_REMEDY}")
    return refusals.expected(said)


@dataclasses.dataclass(frozen=True, slots=True)
class Moves:
    """What both ends of a move have of their host"""

    assigned: Assigned
    starts: Starts
    vgpus: VGPUs
    roots: Roots
    nodename: Callable[[], str]

    def are_moved(self, instance: objects.Instance) -> bool:
        """Whether it has vGPUs, which then are this host's, or are to be"""
        return bool(self.vgpus) and bool(recorded(instance.resources))

    def described(self, found: Held) -> dict[Slot, str]:
        """What each is: only of one that is the same can another take the state."""
        cards = {
            each.device: card.gpu
            for each in found
            if (card := each.group.card_of(each.device)) is not None
        }
        facts = likeness.facts({gpu.address: gpu for gpu in cards.values()}.values(), self.roots)
        return {
            each.device: self._words(each) + facts.get(cards[each.device].address, "")
            if each.device in cards
            else self._words(each)
            for each in found
        }

    def _words(self, each: Holding[VGPUGroup, Slot]) -> str:
        way = self.vgpus.way(each.device)
        return f"{each.device.type_id} of {each.group.product.key}, {way.words}"

    def stays(self, instance: objects.Instance) -> None:
        """Keep the vGPUs of a guest that stays here: its domain names them from now on."""
        if not self.vgpus:
            return
        moving = instance.migration_context
        resources = [*(instance.resources or ()), *((moving and moving.new_resources) or ())]
        if not (here := self.assigned.parts.devices(resources)):
            return
        # Which this service may not know: it can be another one than that which made them.
        self.vgpus.keep(instance.uuid, here)
        try:
            with self.starts.holding(instance.uuid, frozenset()):
                pass
        except exception.GuestError as error:
            LOG.error("Which vGPUs it has is not known: %s", error, instance=instance)

    def refuse_too_old(self, instance: objects.Instance, *, is_able: bool) -> None:
        """:param is_able: as Nova judges this host, by the versions of its libvirt and QEMU
        :raises nova.exception.MigrationPreCheckError: where it cannot move a guest with vGPUs
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
