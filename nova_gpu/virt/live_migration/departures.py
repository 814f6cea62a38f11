# SPDX-License-Identifier: Apache-2.0
"""The source's steps of a live migration of a guest with vGPUs: the checks, and the migration."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import utils as compute_utils
from nova.virt.libvirt import guest as libvirt_guest
from oslo_log import log as logging

from nova_gpu.core import exception, names
from nova_gpu.core.operation_refusals import COLD_REMEDY
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt import libvirt_errors
from nova_gpu.virt.live_migration import migrate_data
from nova_gpu.virt.live_migration.migrate_data import Moves
from nova_gpu.virt.usage import domains, records

LOG = logging.getLogger(__name__)

# The name of Nova's own events of a live migration in the instance's actions
_EVENT = "compute_live_migration_operation"


# NVIDIA's vGPU user guide, "Migrating a VM configured with NVIDIA vGPU": unified memory, debuggers,
# profilers
_FIXED = re.compile("enable_(?:uvm|debugging|profiling)=[1-9][0-9]*")
# VIR_MIGRATE_POSTCOPY of libvirt-domain.h, for [libvirt]live_migration_permit_post_copy
_POST_COPY = 1 << 15


class MovingGuest(libvirt_guest.Guest):  # type: ignore[misc]
    """A guest that arrives with metadata that name its vGPUs at the destination.

    It is not moved by post-copy, which QEMU refuses for any device of VFIO (vfio_save_prepare).

    Nova itself only replaces the vGPUs in the hostdevs of the domain's XML; the metadata of the
    domain, in which nova-gpu lists its devices, are replaced here.
    """

    def __init__(self, guest: Any, gone: Collection[Slot], new: Collection[Slot]) -> None:
        super().__init__(guest._domain)
        self._gone, self._new = gone, new

    def migrate(
        self, *args: Any, destination_xml: str | None = None, flags: int = 0, **kwargs: Any
    ) -> None:
        if destination_xml is not None:
            destination_xml = domains.renamed(destination_xml, self._gone, self._new)
        flags &= ~_POST_COPY
        super().migrate(*args, destination_xml=destination_xml, flags=flags, **kwargs)


def asked(host: Moves, instance: objects.Instance, data: Any) -> Any:
    """Check the instance's vGPUs; describe them in *data* for the destination, and return *data*.

    :raises nova.exception.MigrationPreCheckError: if one of the vGPUs cannot be migrated live
    """
    try:
        holdings = host.assigned.held_of(host.assigned.vgpu_inventory, instance.resources)
    except exception.DeviceUnavailable as error:
        raise migrate_data.refused(error.user_text) from error
    if not holdings:
        return data
    if "target_mdevs" not in data:
        raise migrate_data.refused(
            "the destination takes no running guest with vGPUs: its [DEFAULT]compute_driver is not "
            "gpu.GPULibvirtDriver, or its nova-gpu is too old"
        )
    if "source_mdev_types" in data and data.source_mdev_types:
        raise migrate_data.refused(
            "it has vGPUs from Nova itself ([devices]enabled_mdev_types) as well as from nova-gpu"
        )
    fixed = _FIXED.findall(records.request_of(instance).vgpu_params)
    if fixed:
        raise migrate_data.refused(
            f"NVIDIA's driver migrates no running guest whose vGPUs have {', '.join(fixed)} "
            f"({names.VGPU_PARAMS} of the flavor); {COLD_REMEDY}"
        )
    for holding in holdings:
        stateless = host.movable(holding.device).stateless(holding.device, is_running=True)
        if reason := stateless or host.unmovable(holding.device):
            raise migrate_data.refused(reason)
    described = host.described(holdings)
    data.source_mdev_types = {str(slot): described[slot] for slot in described}
    data.src_supports_numa_live_migration = True
    return data


@contextlib.contextmanager
def leaving(
    host: Moves, context: nova_context.RequestContext, instance: objects.Instance, guest: Any
) -> Iterator[Any]:
    """Wrap libvirt's migration of *guest*; yield the object that Nova must migrate instead.

    It is a :class:`MovingGuest`, or *guest* itself if the instance has no vGPUs.

    If libvirt refuses to migrate one of the vGPUs, log the error and do not raise it: Nova sees
    that the guest still runs here and rolls the migration back. After an error Nova would also put
    the instance in ERROR.
    """
    if not host.are_moved(instance):
        yield guest
        return
    slots = host.assigned.vgpu_inventory.devices(instance.resources)
    new = [pair for _, pair in migrate_data.pairs(instance)]
    # The domain is gone some time before Nova cleans up after the migration.
    host.starts.ledger.keep(instance.uuid, slots)
    try:
        yield MovingGuest(guest, slots, new)
    except Exception as error:  # a migration ends with any error of Nova's
        host.stays(instance)
        names = {str(slot.parent): slot for slot in slots}
        names |= {device_uuid(instance.uuid, slot): slot for slot in slots}
        message = libvirt_errors.of_move(error, names)
        if message is None:
            raise
        LOG.error(
            "Live migration failed, the guest continues on this host: %s; %s",
            message,
            COLD_REMEDY,
            instance=instance,
        )
        _note(
            context,
            host,
            instance,
            nova_exception.MigrationError(reason=f"{message}; {COLD_REMEDY}"),
        )


def _note(
    context: nova_context.RequestContext,
    host: Moves,
    instance: objects.Instance,
    error: nova_exception.MigrationError,
) -> None:
    """Record the error as an event of the instance's live-migration action, for the user."""
    reporter = compute_utils.EventReporter(context, _EVENT, host.nodename(), instance.uuid)
    with contextlib.suppress(nova_exception.InstanceActionNotFound, type(error)), reporter:
        raise error
