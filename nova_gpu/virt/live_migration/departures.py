# SPDX-License-Identifier: Apache-2.0
"""A guest with vGPUs leaves this host as it runs: what is checked first, and the leaving itself."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import utils as compute_utils
from nova.virt.libvirt import guest as libvirt_guest
from oslo_log import log as logging

from nova_gpu.core import exception
from nova_gpu.core.refusal_texts import COLD_REMEDY
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt import libvirt_errors
from nova_gpu.virt.live_migration import migrate_data
from nova_gpu.virt.live_migration.migrate_data import Moves
from nova_gpu.virt.usage import domains

LOG = logging.getLogger(__name__)

# As the events of an instance's action are called that Nova has of a live migration
_EVENT = "compute_live_migration_operation"


class MovingGuest(libvirt_guest.Guest):  # type: ignore[misc]
    """One whose domain names other vGPUs at the destination.

    Nova has put those among its devices, but knows nothing of the metadata.
    """

    def __init__(self, guest: Any, gone: Collection[Slot], new: Collection[Slot]) -> None:
        super().__init__(guest._domain)
        self._gone, self._new = gone, new

    def migrate(self, *args: Any, destination_xml: str | None = None, **kwargs: Any) -> None:
        if destination_xml is not None:
            destination_xml = domains.renamed(destination_xml, self._gone, self._new)
        super().migrate(*args, destination_xml=destination_xml, **kwargs)


def asked(host: Moves, instance: objects.Instance, data: Any) -> Any:
    """Return *data*, with what the instance needs at the destination.

    :raises nova.exception.MigrationPreCheckError: where its vGPUs cannot leave this host as it runs
    """
    try:
        holdings = host.assigned.held_of(host.assigned.parts, instance.resources)
    except exception.DeviceUnavailable as error:
        raise migrate_data.refused(error.user_text) from error
    if not holdings:
        return data
    if "target_mdevs" not in data:
        raise migrate_data.refused(
            "the destination takes no running guest with vGPUs: its driver is not "
            "gpu.GPULibvirtDriver, or an older one"
        )
    if "source_mdev_types" in data and data.source_mdev_types:
        raise migrate_data.refused(
            "it has vGPUs of Nova's own ([devices]enabled_mdev_types) as well as nova-gpu's"
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
    """Wrap libvirt's migration of a guest.

    Yields the guest to migrate, with its metadata rewritten for the destination.

    Where libvirt refuses to move one of its vGPUs, nothing is raised: of an error here Nova makes
    an instance in ERROR, after it has seen that the guest runs on here and has undone all else.
    """
    if not host.are_moved(instance):
        yield guest
        return
    slots = host.assigned.parts.devices(instance.resources)
    new = [pair for _, pair in migrate_data.pairs(instance)]
    # Its domain may be gone a while before Nova comes to clean up after it.
    host.vgpus.keep(instance.uuid, slots)
    try:
        yield MovingGuest(guest, slots, new)
    except Exception as error:  # a migration ends with any error of Nova's
        host.stays(instance)
        names = {str(slot.parent): slot for slot in slots}
        names |= {device_uuid(instance.uuid, slot): slot for slot in slots}
        message = libvirt_errors.of_move(error, names)
        if message is None:
            raise
        LOG.error("The guest stays on this host: %s; %s", message, COLD_REMEDY, instance=instance)
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
    """Record the error with the events of the live migration, for its user."""
    reporter = compute_utils.EventReporter(context, _EVENT, host.nodename(), instance.uuid)
    with contextlib.suppress(nova_exception.InstanceActionNotFound, type(error)), reporter:
        raise error
