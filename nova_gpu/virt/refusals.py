# SPDX-License-Identifier: Apache-2.0
"""What a guest with a passed through card cannot do, refused before anything is done to it.

QEMU cannot save the state of a PCI device: stock Nova has libvirt try, and the instance ends in
ERROR.
"""

from __future__ import annotations

from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from nova.virt.libvirt import utils as libvirt_utils

from nova_gpu.core import exception, guest_options, names, request
from nova_gpu.core.model import DeliveryMode
from nova_gpu.virt import guest_pci
from nova_gpu.virt.host_gpus import HostGPUs

_SNAPSHOT = (
    task_states.IMAGE_SNAPSHOT_PENDING,
    task_states.IMAGE_SNAPSHOT,
    task_states.IMAGE_PENDING_UPLOAD,
    task_states.IMAGE_UPLOADING,
)

_LIVE = (
    "cannot be moved to another host while the guest runs; migrate the instance cold (openstack "
    "server migrate, without --live-migration)"
)


def suspend(gpus: HostGPUs, instance: objects.Instance) -> None:
    """Nova suspends a guest for a snapshot as well, where it takes none of a running one.

    :raises nova.exception.InstanceFaultRollback: the instance goes on as it was
    """
    if held := _passed_through(gpus, instance):
        remedy = "stop or shelve the instance"
        if instance.task_state in _SNAPSHOT:
            remedy = "stop the instance for the snapshot, as this host takes none of a running one"
        raise nova_exception.InstanceFaultRollback(
            nova_exception.InstanceSuspendFailure(
                reason=f"the state of GPU {held} cannot be saved; {remedy}"
            )
        )


def resize(gpus: HostGPUs, instance: objects.Instance, flavor: objects.Flavor) -> None:
    """Refuses at the source what the destination could only refuse when the guest is gone.

    :raises nova.exception.InstanceFaultRollback: the instance goes on as it was
    """
    extra_specs = flavor.extra_specs or {}
    if gpus.mode is not DeliveryMode.PCI or not request.asks_for_gpus(extra_specs):
        return
    try:
        guest_options.option_rom(extra_specs)
        guest_pci.refuse_machine_type(libvirt_utils.get_machine_type(instance.image_meta))
    except exception.GPUError as error:
        raise nova_exception.InstanceFaultRollback(
            nova_exception.ResizeError(reason=str(error))
        ) from error


def live_migration_from(gpus: HostGPUs, instance: objects.Instance) -> None:
    """:raises nova.exception.MigrationPreCheckError: the instance goes on as it was"""
    if held := _passed_through(gpus, instance):
        raise nova_exception.MigrationPreCheckError(reason=f"the state of GPU {held} {_LIVE}")


def live_migration_to(gpus: HostGPUs, instance: objects.Instance) -> None:
    """The destination is asked first, and of another error than this one the conductor would keep
    the reason to itself and try the next host.

    :raises nova.exception.NoValidHost: the instance goes on as it was
    """
    if gpus.mode is DeliveryMode.PCI and request.asks_for_gpus(instance.flavor.extra_specs or {}):
        raise nova_exception.NoValidHost(reason=f"The state of a passed through GPU {_LIVE}")


def _passed_through(gpus: HostGPUs, instance: objects.Instance) -> str:
    """The addresses of the instance's cards of this host, whether or not they are well."""
    if gpus.mode is not DeliveryMode.PCI:
        return ""
    return ", ".join(
        sorted(
            each.identifier
            for each in instance.resources or ()
            if each.resource_class == names.RESOURCE_CLASS and gpus.group_of(each.provider_uuid)
        )
    )
