# SPDX-License-Identifier: Apache-2.0
"""Refusals of operations that a guest does not support, before anything is done to the guest.

Stock Nova lets libvirt try, and the instance ends in ERROR: QEMU cannot save the state of a PCI
device, libvirt's LXC driver cannot save the state of a container, and Nova starts a container's
rescue without mounting its disk. The texts are in :mod:`nova_gpu.core.operation_refusals`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import boundary, exception
from nova_gpu.virt.delivery.deliveries import Deliveries
from nova_gpu.virt.delivery.delivery import Delivery, Operation
from nova_gpu.virt.expected_errors import expected
from nova_gpu.virt.inventory.assignment import InstanceDevices
from nova_gpu.virt.inventory.vgpu_cards import VGPUCards
from nova_gpu.virt.usage import records
from nova_gpu.virt.usage.ledger import Ledger

LOG = logging.getLogger(__name__)

_SNAPSHOT = (
    task_states.IMAGE_SNAPSHOT_PENDING,
    task_states.IMAGE_SNAPSHOT,
    task_states.IMAGE_BACKUP,
    task_states.IMAGE_PENDING_UPLOAD,
    task_states.IMAGE_UPLOADING,
)

# Of an instance's reboot, as its user and ``openstack gpu explain server`` read it
_EVENT = "compute_refuse_gpus"


class RefusedStarts:
    """The rescues and hard reboots that are refused, by the uuid of the instance.

    Nova leaves no other way to refuse one: ``ComputeManager.rescue_instance`` calls the driver's
    power_off and rescue first, and puts the instance in ERROR for any exception of these;
    ``reboot_instance`` does so for an exception of reboot if no guest runs. So for a refused start
    these three methods do nothing. Nova next asks the driver for the guest's power state, before it
    saves anything: there the error is raised, and Nova's decorators record it and clear the task.
    doc/source/contributor/upstream.rst asks for another way.

    ``is_repeating``: whether the service starts. Nova then repeats reboots that were interrupted,
    and an error of one would end the service: the guest stays off, and Nova stops its instance.
    """

    def __init__(self) -> None:
        self.is_repeating = False
        # With the instance's vm_state before the operation
        self._errors: dict[str, tuple[nova_exception.NovaException, str]] = {}

    def begin(self, instance: objects.Instance) -> None:
        """Drop what an earlier operation of the instance left; call this when one begins."""
        self._errors.pop(instance.uuid, None)

    def refuse(self, instance: objects.Instance, error: nova_exception.NovaException) -> None:
        """Refuse the operation: the driver must leave the guest as it is until :meth:`end`."""
        if self.is_repeating:
            _note(instance, error)
            return
        self._errors[instance.uuid] = error, instance.vm_state

    def has(self, instance: objects.Instance) -> bool:
        return instance.uuid in self._errors

    def end(self, instance: objects.Instance) -> None:
        """Raise the error of the operation if it was refused; call this for the power state.

        :raises nova.exception.NovaException: if it was refused; the instance stays as it was
        """
        is_reboot = instance.task_state == task_states.REBOOT_STARTED_HARD
        if self.has(instance) and (is_reboot or instance.vm_state == vm_states.RESCUED):
            error, instance.vm_state = self._errors.pop(instance.uuid)
            raise expected(error)


def _note(instance: objects.Instance, error: nova_exception.NovaException) -> None:
    """Add *error* to the last action of the instance; raise nothing."""
    what = nova_context.get_admin_context(), instance.uuid, _EVENT
    events = objects.InstanceActionEvent
    try:
        with boundary.crossed():
            events.event_start(*what, want_result=False, host=CONF.host)
            events.event_finish_with_failure(
                *what, exc_val=error, exc_tb=error.__traceback__, want_result=False
            )
    except boundary.Failure as failure:
        LOG.warning("Cannot show its user why the start is refused: %s", failure, instance=instance)


@dataclasses.dataclass(frozen=True, slots=True)
class Refusals:
    """Refusals of operations that guests of one host do not support.

    :param cards: the cards that guests get parts of, from which the kind of each part is known
    """

    deliveries: Deliveries
    assigned: InstanceDevices
    cards: VGPUCards
    ledger: Ledger
    starts: RefusedStarts = dataclasses.field(default_factory=RefusedStarts)

    def suspend(self, instance: objects.Instance) -> None:
        """Refuse a suspend or a snapshot that a device of the instance, or this host, rules out.

        Nova suspends every guest for a snapshot, except containers.

        :raises nova.exception.InstanceFaultRollback: if it is refused; the instance stays as it was
        """
        is_snapshot = instance.task_state in _SNAPSHOT
        operation = Operation.SNAPSHOT if is_snapshot else Operation.SUSPEND
        if reason := self._refused_to_all(operation) or self._refused(instance, operation):
            raise nova_exception.InstanceFaultRollback(
                expected(nova_exception.InstanceSuspendFailure(reason=reason))
            )

    def rescue(self, instance: objects.Instance) -> bool:
        """Refuse a rescue if this host's guests cannot be rescued; return whether it is refused.

        Call this when Nova stops the guest; return ``False`` if it stops it for anything else.
        """
        self.starts.begin(instance)
        if instance.task_state != task_states.RESCUING:
            return False
        if reason := self._refused_to_all(Operation.RESCUE):
            self.starts.refuse(
                instance,
                nova_exception.InstanceNotRescuable(instance_id=instance.uuid, reason=reason),
            )
        return reason is not None

    def resize(self, instance: objects.Instance, flavor: objects.Flavor) -> None:
        """Refuse a resize, at the source, to a *flavor* whose GPUs the guest could not have.

        At the destination it could be refused only after the guest has been stopped.

        :raises nova.exception.InstanceFaultRollback: if it is refused; the instance stays as it was
        """
        request = records.request_of_flavor(flavor)
        if not request.asks_for_gpus:
            return
        try:
            self.deliveries.whole.refuse(instance, request, ())
        except exception.GPUError as error:
            raise nova_exception.InstanceFaultRollback(
                expected(nova_exception.ResizeError(reason=str(error)))
            ) from error

    def resize_here(self, context: nova_context.RequestContext, instance: objects.Instance) -> None:
        """Refuse a resize on the same host of an instance that has cards of this host by an alias.

        Nova keeps the cards until the resize is confirmed or reverted, and no domain names them
        meanwhile. Other instances would get those that ``[pci]device_spec`` no longer has.

        :raises nova.exception.InstanceFaultRollback: if it is refused; the instance stays as it was
        """
        now, uuid = self.ledger.now, instance.uuid
        reached = now.reached.get(uuid, frozenset())
        cards = sorted(
            str(dev) for dev, user in now.strangers().items() if user == uuid and dev not in reached
        )
        if not cards:
            return
        moving = objects.Migration.get_by_id(context, instance.migration_context.migration_id)
        if moving.dest_compute == instance.host:
            reason = (
                f"Nova's database counts {', '.join(cards)} for it by an alias, and "
                "[pci]device_spec of its host no longer has that: other instances would get it "
                "before the resize is confirmed or reverted; resize it to another host, or let the "
                "operator take it over first (nova-gpu adopt)"
            )
            raise nova_exception.InstanceFaultRollback(
                expected(nova_exception.ResizeError(reason=reason))
            )

    def live_migration_from(self, instance: objects.Instance) -> None:
        """Refuse, at the source, a live migration if a device of the instance rules it out.

        Reasons that depend on the destination's vGPUs come from
        :mod:`nova_gpu.virt.live_migration.departures`.

        :raises nova.exception.MigrationPreCheckError: if it is refused; the instance stays as it
            was
        """
        if reason := self._refused(instance, Operation.LIVE_MIGRATION):
            raise expected(nova_exception.MigrationPreCheckError(reason=reason))

    def live_migration_to(self, instance: objects.Instance) -> None:
        """Refuse a live migration, at the destination, if the flavor's devices rule it out.

        Nova calls the destination first. The error is NoValidHost because after any other error the
        conductor would drop the reason and try the next host.

        :raises nova.exception.NoValidHost: if it is refused; the instance stays as it was
        """
        request = records.request_of(instance)
        deliveries: list[Delivery] = []
        if request.asks_for_gpus:
            deliveries.append(self.deliveries.whole)
        if request.vgpu_words:
            deliveries += self.deliveries.parts.values()
        if reason := _first(deliveries, Operation.LIVE_MIGRATION):
            raise expected(nova_exception.NoValidHost(reason=reason))

    def _refused_to_all(self, operation: Operation) -> str | None:
        """Return why not even a guest without GPUs supports the operation here, or ``None``.

        On a host without GPUs it is always ``None``.
        """
        return (
            self.deliveries.whole.unsupported(operation, has_gpus=False) if self.assigned else None
        )

    def _refused(self, instance: objects.Instance, operation: Operation) -> str | None:
        """Return why a device of the instance does not support the operation, or ``None``."""
        devices = self.assigned.devices(instance.resources)
        deliveries = self.deliveries.by_grant(devices, self.cards.look.kind)
        return _first((delivery for delivery, own in deliveries if own), operation)


def _first(deliveries: Iterable[Delivery], operation: Operation) -> str | None:
    reasons = (delivery.unsupported(operation) for delivery in deliveries)
    return next(filter(None, reasons), None)
