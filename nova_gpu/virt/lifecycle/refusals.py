# SPDX-License-Identifier: Apache-2.0
"""What a guest cannot do, refused before anything is done to it.

Stock Nova has libvirt try, and the instance ends in ERROR: QEMU cannot save the state of a PCI
device, libvirt's LXC driver cannot save a container's, and Nova starts a container's rescue without
having mounted its disk.
"""

from __future__ import annotations

from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from nova.virt.libvirt import utils as libvirt_utils
from oslo_log import log as logging

from nova_gpu.core import exception, names, refused
from nova_gpu.core.model import DeliveryMode
from nova_gpu.virt import flavors
from nova_gpu.virt.delivery import guest_pci
from nova_gpu.virt.host_gpus import HostGPUs

LOG = logging.getLogger(__name__)

_SNAPSHOT = (
    task_states.IMAGE_SNAPSHOT_PENDING,
    task_states.IMAGE_SNAPSHOT,
    task_states.IMAGE_PENDING_UPLOAD,
    task_states.IMAGE_UPLOADING,
)

_WHAT_STAYS = {
    DeliveryMode.PCI: refused.LIVE_CARDS,
    DeliveryMode.LXC: refused.LIVE_CONTAINER,
}


class RescueRefused(BaseException):
    """The refusal of a rescue: an ``Exception`` would put the instance in ERROR, whatever it says.

    This one passes it by, and is written down as the outcome of the instance's action. Nova runs a
    rescue for nobody who waits for an answer.
    """

    def format_message(self) -> str:
        """What Nova writes down; of what has none only the name of the class."""
        return str(self)

    def obj_to_primitive(self) -> str:
        """What Nova's RPC sends to the conductor, which writes it down."""
        return str(self)


def suspend(gpus: HostGPUs, instance: objects.Instance) -> None:
    """Nova suspends a guest for a snapshot as well, where it takes none of a running one; but no
    container.

    :raises nova.exception.InstanceFaultRollback: the instance goes on as it was
    """
    if are_containers(gpus):
        reason = refused.SUSPEND_CONTAINER
    elif gpus.delivery.mode is DeliveryMode.PCI and _held(gpus, instance):
        is_snapshot = instance.task_state in _SNAPSHOT
        reason = refused.SNAPSHOT_GPUS if is_snapshot else refused.SUSPEND_GPUS
    else:
        return
    raise nova_exception.InstanceFaultRollback(nova_exception.InstanceSuspendFailure(reason=reason))


def rescue(gpus: HostGPUs, instance: objects.Instance) -> None:
    """Refuse a rescue where Nova stops the guest, which is the first thing done to it.

    :raises RescueRefused: the instance goes on as it was
    """
    if are_containers(gpus) and instance.task_state == task_states.RESCUING:
        instance.task_state = None
        instance.save(expected_task_state=[task_states.RESCUING])
        said = nova_exception.InstanceNotRescuable(
            instance_id=instance.uuid, reason=refused.RESCUE_CONTAINER
        )
        LOG.warning("%s", said, instance=instance)
        raise RescueRefused(str(said))


def resize(gpus: HostGPUs, instance: objects.Instance, flavor: objects.Flavor) -> None:
    """Refuses at the source what the destination could only refuse when the guest is gone.

    :raises nova.exception.InstanceFaultRollback: the instance goes on as it was
    """
    asked = flavors.request_of_flavor(flavor)
    if gpus.delivery.mode is not DeliveryMode.PCI or not asked.asks_for_gpus:
        return
    try:
        asked.check_guest_options()
        guest_pci.refuse_machine_type(libvirt_utils.get_machine_type(instance.image_meta))
    except exception.GPUError as error:
        raise nova_exception.InstanceFaultRollback(
            nova_exception.ResizeError(reason=str(error))
        ) from error


def live_migration_from(gpus: HostGPUs, instance: objects.Instance) -> None:
    """Refuse the live migration of whole cards and of containers. What there is about vGPUs is said
    with what the destination gives (:mod:`nova_gpu.virt.live_migration.departures`).

    :raises nova.exception.MigrationPreCheckError: the instance goes on as it was
    """
    look = _held if gpus.delivery.mode is DeliveryMode.LXC else _cards
    if look(gpus, instance):
        raise nova_exception.MigrationPreCheckError(reason=_WHAT_STAYS[gpus.delivery.mode])


def live_migration_to(gpus: HostGPUs, instance: objects.Instance) -> None:
    """The destination is asked first, and of another error than this one the conductor would keep
    the reason to itself and try the next host.

    :raises nova.exception.NoValidHost: the instance goes on as it was
    """
    asked = flavors.request_of(instance)
    in_parts = gpus.delivery.mode is DeliveryMode.LXC and asked.has_vgpu_words
    if in_parts or asked.asks_for_gpus:
        raise nova_exception.NoValidHost(reason=_WHAT_STAYS[gpus.delivery.mode])


def are_containers(gpus: HostGPUs) -> bool:
    """All instances of an LXC host, with GPUs or without. One without GPUs is left to Nova."""
    return gpus.delivery.mode is DeliveryMode.LXC and gpus.has_gpus


def _held(gpus: HostGPUs, instance: objects.Instance) -> list[str]:
    """The addresses of the instance's cards of this host, and its vGPUs, whether or not they are
    well."""
    return _cards(gpus, instance) + [str(slot) for slot in gpus.vgpus.slots(instance.resources)]


def _cards(gpus: HostGPUs, instance: objects.Instance) -> list[str]:
    return sorted(
        each.identifier
        for each in instance.resources or ()
        if each.resource_class == names.RESOURCE_CLASS and gpus.group_of(each.provider_uuid)
    )
