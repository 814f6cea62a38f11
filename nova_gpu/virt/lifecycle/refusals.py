# SPDX-License-Identifier: Apache-2.0
"""Operations that a guest cannot have, refused before anything is done to it.

Stock Nova lets libvirt try, and the instance ends in ERROR: QEMU cannot save the state of a PCI
device, libvirt's LXC driver cannot save a container's, and Nova starts a container's rescue without
having mounted its disk.
"""

from __future__ import annotations

import dataclasses
import logging as python_logging
from collections.abc import Iterable
from typing import TypeVar

from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from oslo_log import log as logging

from nova_gpu.core import exception
from nova_gpu.virt.delivery.delivery import Delivery, Operation
from nova_gpu.virt.delivery.ways import Ways
from nova_gpu.virt.inventory.assignment import Assigned
from nova_gpu.virt.inventory.vgpu_cards import VGPUCards
from nova_gpu.virt.usage import records

LOG = logging.getLogger(__name__)

_SNAPSHOT = (
    task_states.IMAGE_SNAPSHOT_PENDING,
    task_states.IMAGE_SNAPSHOT,
    task_states.IMAGE_PENDING_UPLOAD,
    task_states.IMAGE_UPLOADING,
)


_RPC_LOG = "oslo_messaging.rpc.server"
_MARK = "is_expected_by_nova_gpu"
Error = TypeVar("Error", bound=Exception)


def expected(error: Error) -> Error:
    """Return *error*, which is no fault of the service.

    Its user reads it, the log has a line of it.
    """
    setattr(error, _MARK, True)
    return error


class _Expected(python_logging.Filter):
    def filter(self, record: python_logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not hasattr(error, _MARK):
            return True
        LOG.info("Refused: %s", error)
        return False


_EXPECTED = _Expected()


def log_in_a_line() -> None:
    """Log refusals of the driver in one line each.

    Nova's manager tells oslo.messaging of no method to expect them: each would be an exception with
    its traceback.
    """
    python_logging.getLogger(_RPC_LOG).addFilter(_EXPECTED)


@dataclasses.dataclass(frozen=True, slots=True)
class Refusals:
    """The operations that guests of one host cannot have.

    :param cards: the cards given in parts, which say in which way each part is given
    """

    ways: Ways
    assigned: Assigned
    cards: VGPUCards
    # Why a rescue or hard reboot goes no further, and the vm_state before it, by instance
    _refused_starts: dict[str, tuple[nova_exception.NovaException, str]] = dataclasses.field(
        default_factory=dict
    )

    def suspend(self, instance: objects.Instance) -> None:
        """Refuse a suspend. Nova suspends a guest for a snapshot, too, unless it is a container.

        :raises nova.exception.InstanceFaultRollback: the instance goes on as it was
        """
        is_snapshot = instance.task_state in _SNAPSHOT
        operation = Operation.SNAPSHOT if is_snapshot else Operation.SUSPEND
        if reason := self._refused_to_all(operation) or self._refused(instance, operation):
            raise nova_exception.InstanceFaultRollback(
                expected(nova_exception.InstanceSuspendFailure(reason=reason))
            )

    # ``ComputeManager.rescue_instance`` puts the instance in ERROR for any exception of power_off
    # and rescue, the driver's methods that it calls first, and ``reboot_instance`` for one of
    # reboot where no guest runs. So these do nothing for a start that is refused, and the reason is
    # raised where Nova next asks the driver, for the guest's power state, with nothing saved yet:
    # Nova's decorators record it and clear the task. doc/source/contributor/upstream.rst asks for
    # another way.

    def rescue(self, instance: objects.Instance) -> bool:
        """Return whether a rescue is refused, where Nova stops the guest for it."""
        if instance.task_state != task_states.RESCUING:
            return False
        self._refused_starts.pop(instance.uuid, None)
        if reason := self._refused_to_all(Operation.RESCUE):
            self.refuse_start(
                instance,
                nova_exception.InstanceNotRescuable(instance_id=instance.uuid, reason=reason),
            )
        return reason is not None

    def refuse_start(self, instance: objects.Instance, error: nova_exception.NovaException) -> None:
        """Let the rescue or hard reboot that is under way do nothing, and fail with *error*."""
        self._refused_starts[instance.uuid] = error, instance.vm_state

    def is_rescue_refused(self, instance: objects.Instance) -> bool:
        return instance.uuid in self._refused_starts

    def end_start(self, instance: objects.Instance) -> None:
        """Fail a refused rescue or reboot where Nova is about to record it as done.

        :raises nova.exception.NovaException: the instance goes on as it was
        """
        is_reboot = instance.task_state == task_states.REBOOT_STARTED_HARD
        if self.is_rescue_refused(instance) and (
            is_reboot or instance.vm_state == vm_states.RESCUED
        ):
            error, instance.vm_state = self._refused_starts.pop(instance.uuid)
            raise expected(error)

    def resize(self, instance: objects.Instance, flavor: objects.Flavor) -> None:
        """Refuse at the source what the destination could only refuse when the guest is gone.

        :raises nova.exception.InstanceFaultRollback: the instance goes on as it was
        """
        request = records.request_of_flavor(flavor)
        if not request.asks_for_gpus:
            return
        try:
            self.ways.whole.refuse(instance, request, ())
        except exception.GPUError as error:
            raise nova_exception.InstanceFaultRollback(
                expected(nova_exception.ResizeError(reason=str(error)))
            ) from error

    def live_migration_from(self, instance: objects.Instance) -> None:
        """Refuse the live migration of what no host moves.

        What there is about vGPUs is said with what the destination gives
        (:mod:`nova_gpu.virt.live_migration.departures`).

        :raises nova.exception.MigrationPreCheckError: the instance goes on as it was
        """
        if reason := self._refused(instance, Operation.LIVE_MIGRATION):
            raise expected(nova_exception.MigrationPreCheckError(reason=reason))

    def live_migration_to(self, instance: objects.Instance) -> None:
        """Refuse a live migration at the destination, which is asked first.

        For another error than this one the conductor would keep the reason to itself and try the
        next host.

        :raises nova.exception.NoValidHost: the instance goes on as it was
        """
        request = records.request_of(instance)
        ways: list[Delivery] = []
        if request.asks_for_gpus:
            ways.append(self.ways.whole)
        if request.vgpu_words:
            ways += self.ways.parts.values()
        if reason := _first(ways, Operation.LIVE_MIGRATION):
            raise expected(nova_exception.NoValidHost(reason=reason))

    def _refused_to_all(self, operation: Operation) -> str | None:
        """Return why no guest of this host can have it done, with GPUs or without.

        A host without any leaves its guests to Nova.
        """
        return self.ways.whole.unsupported(operation, has_gpus=False) if self.assigned else None

    def _refused(self, instance: objects.Instance, operation: Operation) -> str | None:
        """Return why the instance cannot have the operation, by its devices of this host."""
        devices = self.assigned.devices(instance.resources)
        deliveries = self.ways.deliveries(devices, self.cards.look.kind)
        return _first((delivery for delivery, own in deliveries if own), operation)


def _first(deliveries: Iterable[Delivery], operation: Operation) -> str | None:
    reasons = (delivery.unsupported(operation) for delivery in deliveries)
    return next(filter(None, reasons), None)
