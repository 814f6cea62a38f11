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

from collections.abc import Iterable

from nova import exception as nova_exception
from nova import objects
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import utils as libvirt_utils
from oslo_log import log as logging

from nova_gpu.core import exception, names
from nova_gpu.core.refused import COLD_REMEDY
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.host_gpus import HostGPUs
from nova_gpu.virt.lifecycle import vgpu_starts
from nova_gpu.virt.live_migration import likeness

LOG = logging.getLogger(__name__)


def recorded(resources: Iterable[objects.Resource] | None) -> list[Slot]:
    """The vGPUs among *resources*, of whatever host, those of one type beside each other"""
    found = (
        Slot.parse(each.identifier)
        for each in resources or ()
        if each.resource_class == names.VGPU_RESOURCE_CLASS
    )
    return sorted(found, key=lambda slot: (slot.type_id, slot))


def are_moved(gpus: HostGPUs, instance: objects.Instance) -> bool:
    """Whether it has vGPUs, which then are this host's, or are to be"""
    return bool(gpus.vgpus) and bool(recorded(instance.resources))


def pairs(instance: objects.Instance) -> list[tuple[Slot, Slot]]:
    """What the instance has at the source, each with what it will have in its place"""
    moving = instance.migration_context
    old, new = recorded(moving.old_resources), recorded(moving.new_resources)
    return list(zip(old, new, strict=True))


def described(gpus: HostGPUs, found: vgpu_starts.Held) -> dict[Slot, str]:
    """What each is: only of one that is the same can another take the state."""
    cards = {slot: card.gpu for group, slot in found if (card := group.card_of(slot))}
    facts = likeness.facts({gpu.address: gpu for gpu in cards.values()}.values(), gpus.roots)
    return {
        slot: f"{slot.type_id} of {group.product.key}, {gpus.vgpus.way(slot).words}"
        + (facts.get(cards[slot].address, "") if slot in cards else "")
        for group, slot in found
    }


def stays(gpus: HostGPUs, instance: objects.Instance) -> None:
    """Keep the vGPUs of a guest that stays here: its domain names them from now on."""
    if not gpus.vgpus:
        return
    moving = instance.migration_context
    resources = [*(instance.resources or ()), *((moving and moving.new_resources) or ())]
    if not (here := gpus.vgpus.slots(resources)):
        return
    # Which this service may not know: it can be another one than that which made them.
    gpus.vgpus.keep(instance.uuid, here)
    try:
        with gpus.held(instance.uuid, frozenset()):
            pass
    except exception.GuestError as error:
        LOG.error("Which vGPUs it has is not known: %s", error, instance=instance)


def refused(reason: str) -> nova_exception.MigrationPreCheckError:
    """The instance goes on as it was, and its user reads what to do instead. Of a destination that
    says so the conductor tries another."""
    return nova_exception.MigrationPreCheckError(reason=f"{reason}; {COLD_REMEDY}")


def refuse_too_old(gpus: HostGPUs, instance: objects.Instance, *, is_able: bool) -> None:
    """:param is_able: as Nova judges this host, by the versions of its libvirt and QEMU
    :raises nova.exception.MigrationPreCheckError: where it cannot move a guest with vGPUs
    """
    if not is_able and are_moved(gpus, instance):
        libvirt = libvirt_utils.version_to_string(libvirt_driver.MIN_MDEV_LIVEMIG_LIBVIRT_VERSION)
        qemu = libvirt_utils.version_to_string(libvirt_driver.MIN_MDEV_LIVEMIG_QEMU_VERSION)
        raise refused(
            f"host {gpus.nodename} cannot move a running guest with vGPUs, which takes libvirt "
            f"{libvirt} and QEMU {qemu} at both ends"
        )
