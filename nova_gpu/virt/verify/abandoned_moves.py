# SPDX-License-Identifier: Apache-2.0
"""Release of GPUs that Nova still counts for resizes and migrations which have ended or stopped.

:class:`AbandonedMoves`: when nova-compute starts and finds an instance in the middle of a resize,
it only clears the task or starts the guest again at the source (``ComputeManager._init_instance``).
Placement goes on counting the old GPUs for the migration and the new ones for the instance, and the
destination keeps the new ones for the instance. After an interrupted live migration nova-compute
also clears the task only, after it had libvirt cancel the migration. If a resize fails, the
destination's resource tracker keeps the new GPUs until the instance's next move.

:func:`release_orphans`: while an instance moves, the migration holds its old allocation. Nova
leaves that allocation if nova-compute dies during a move and the instance is then deleted, or if it
dies just after a move was confirmed. ``ResourceTracker._remove_deleted_instances_allocations``
looks for instances of the consumer's uuid only, and ``nova-manage placement audit`` for the
resource classes in ``NOVA_RCS`` of ``nova/cmd/manage.py`` only, without ``PGPU``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from oslo_log import log as logging

from nova_gpu.core import boundary
from nova_gpu.core.device import Device
from nova_gpu.virt.usage import records
from nova_gpu.virt.usage.allocations import Allocations

LOG = logging.getLogger(__name__)

# The statuses of a resize in which the instance is at the source, unchanged. With "error" it is so
# again, but an allocation may be left, if Placement failed when Nova gave it back. With the third
# its disk is ready for the destination: it is unchanged where that is its own host.
_POST_MIGRATING = "post-migrating"
_BEFORE_THE_MOVE = ("pre-migrating", "migrating", _POST_MIGRATING, "error")
_SETTLED = (vm_states.ACTIVE, vm_states.STOPPED, vm_states.PAUSED)
# The same for a live migration: all statuses, as long as the instance's domain is on this host.
_AS_IT_RUNS = ("accepted", "queued", "preparing", "running", "error")
# The tasks of a resize before the instance leaves the source. If nova-compute dies while it handles
# a failure, the instance stays in ERROR with the task (_error_out_instance_on_exception).
_TASKS_BEFORE = (task_states.RESIZE_PREP, task_states.RESIZE_MIGRATING)


class AbandonedMoves:
    """Resizes and migrations that are recorded as in progress or failed, but were abandoned.

    Those from this host, and failed resizes to it whose instance stays here.

    A move is ended only if two periods in a row find it so: a move in progress may be between two
    tasks.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._seen: set[str] = set()

    def end(
        self,
        reportclient: Any,
        nodename: str,
        had_by: Callable[[str], Collection[Device]],
        may_hold: Callable[[str], bool],
    ) -> None:
        """Release the GPUs of moves that are abandoned now and were in the last period.

        Raise nothing. Call this once in a period, and never in a claim.

        :param had_by: return the devices of an instance's domain on this host, by its uuid
        :param may_hold: return whether Placement counted anything of this host for a consumer when
            it was last asked, or was not asked yet
        """
        context = nova_context.get_admin_context()
        before, self._seen = self._seen, set()
        try:
            with boundary.crossed():
                migrations = objects.MigrationList.get_in_progress_and_error(
                    context, self._host, nodename
                )
        except boundary.Failure as error:
            LOG.warning("Cannot look for abandoned moves: %s", error)
            return
        # Nova keeps a failed migration until its instance is deleted, so there may be hundreds.
        instances: dict[str, objects.Instance | None] = {}
        for migration in migrations:
            if not self._may_be_abandoned(migration, had_by):
                continue
            try:
                with boundary.crossed():
                    uuid = migration.instance_uuid
                    if uuid not in instances:
                        instances[uuid] = None  # is asked for once, also if that fails
                        instances[uuid] = objects.Instance.get_by_uuid(
                            context, uuid, expected_attrs=["migration_context", "resources"]
                        )
                    instance = instances[uuid]
                    if instance is None or not self._is_abandoned(migration, instance):
                        continue
                    if _is_over(context, reportclient, migration, instance, may_hold):
                        continue
                    self._seen.add(migration.uuid)
                    if migration.uuid in before:
                        _end(context, reportclient, migration, instance)
            except boundary.Failure as error:
                LOG.warning(
                    "Cannot find out whether its move %s is abandoned, or end it, will retry in "
                    "the next period: %s",
                    migration.uuid,
                    error,
                    instance_uuid=migration.instance_uuid,
                )

    def _may_be_abandoned(
        self, migration: objects.Migration, had_by: Callable[[str], Collection[Device]]
    ) -> bool:
        """Return whether *migration* is one to look at, without a look at its instance."""
        is_live = _is_live(migration)
        statuses = _AS_IT_RUNS if is_live else _BEFORE_THE_MOVE
        has_failed = migration.status == "error" and not is_live
        ends = (migration.source_compute, migration.dest_compute if has_failed else None)
        return (
            self._host in ends
            and migration.status in statuses
            and (is_live or migration.migration_type in ("resize", "migration"))
            and bool(not is_live or had_by(migration.instance_uuid))
        )

    def _is_abandoned(self, migration: objects.Migration, instance: objects.Instance) -> bool:
        is_live, moving = _is_live(migration), instance.migration_context
        if is_live and (moving is None or moving.migration_id != migration.id):
            return False
        settled = instance.vm_state in _SETTLED and instance.task_state is None
        if migration.status == _POST_MIGRATING and _has_new_flavor(migration, instance):
            return False
        has_failed = migration.status == "error" and not is_live
        is_from_here = migration.source_compute == self._host
        if has_failed and is_from_here and instance.vm_state == vm_states.ERROR:
            settled = instance.task_state in (None, *_TASKS_BEFORE)
        return bool(instance.host == self._host and settled)


def _is_live(migration: objects.Migration) -> bool:
    return bool(migration.migration_type == "live-migration")


def _has_new_flavor(migration: objects.Migration, instance: objects.Instance) -> bool:
    return bool(instance.instance_type_id != migration.old_instance_type_id)


def _is_over(
    context: nova_context.RequestContext,
    reportclient: Any,
    migration: objects.Migration,
    instance: objects.Instance,
    may_hold: Callable[[str], bool],
) -> bool:
    """Return whether *migration* is a failed resize or cold migration with no GPUs to release."""
    return (
        migration.status == "error"
        and not _is_live(migration)
        and not _is_claimed(migration, instance)
        and not (may_hold(migration.uuid) and _held(context, reportclient, migration, instance))
    )


def _held(
    context: nova_context.RequestContext,
    reportclient: Any,
    migration: objects.Migration,
    instance: objects.Instance,
) -> Any:
    """Return what Placement counts for *migration* at the host of *instance*, the move's source.

    What it counts for a source that the instance has left is :func:`ended`'s.
    """
    if migration.source_compute != instance.host:
        return None
    return reportclient.get_allocations_for_consumer(context, migration.uuid)


def _is_claimed(migration: objects.Migration, instance: objects.Instance) -> bool:
    """Return whether Nova still counts the claim of a failed resize to the instance's host.

    ``ResourceTracker._update_available_resource`` counts the claimed devices as the instance's
    while its migration context exists.
    """
    moving = instance.migration_context
    return (
        migration.dest_compute == instance.host
        and moving is not None
        and moving.migration_id == migration.id
        and records.is_claim_left(instance)
    )


def _end(
    context: nova_context.RequestContext,
    reportclient: Any,
    migration: objects.Migration,
    instance: objects.Instance,
) -> None:
    """Release the GPUs of the move and set its status to ``error``, as Nova does after a failure.

    The status comes last: if a step fails, the next period finds the move again.
    """
    LOG.warning(
        "Released the GPUs of migration %s (%s), which was interrupted",
        migration.uuid,
        migration.status,
        instance=instance,
    )
    if _held(context, reportclient, migration, instance):
        reportclient.move_allocations(context, migration.uuid, instance.uuid)
    moving = instance.migration_context
    if moving is not None and moving.migration_id == migration.id:
        instance.drop_migration_context()
    migration.status = "error"
    migration.save()


def release_orphans(
    reportclient: Any, allocations: Allocations, instances: Collection[str]
) -> bool:
    """Delete the allocations of ended migrations from a host's groups of GPUs; raise nothing.

    Call this once in a period, and never in a claim. Return whether any was deleted.

    :param instances: the instances here, whose uuids are no migrations, and not looked up
    """
    context = nova_context.get_admin_context(read_deleted="yes")
    groups = (uuid for uuid in allocations.by_provider if uuid != allocations.node)
    consumers = {consumer for uuid in groups for consumer in allocations.by_provider[uuid]}
    is_deleted = False
    for consumer in sorted(consumers.difference(instances)):
        try:
            with boundary.crossed():
                if reason := ended(context, consumer):
                    LOG.warning("Released the GPUs of migration %s: %s", consumer, reason)
                    reportclient.delete_allocation_for_instance(
                        context, consumer, consumer_type="migration"
                    )
                    is_deleted = True
        except boundary.Failure as error:
            LOG.warning(
                "Cannot find out whether migration %s has ended, or release its GPUs, will "
                "retry in the next period: %s",
                consumer,
                error,
            )
    return is_deleted


def ended(context: nova_context.RequestContext, consumer: str) -> str | None:
    """Return why *consumer* is a migration that no longer needs its GPUs, ``None`` if it is not.

    :param context: a context that also reads deleted records
    """
    try:
        migration = objects.Migration.get_by_uuid(context, consumer)
    except nova_exception.MigrationNotFound:
        return None
    if migration.status == "confirmed":
        return "it is confirmed"
    try:
        instance = objects.Instance.get_by_uuid(context, migration.instance_uuid)
    except nova_exception.InstanceNotFound:
        return None
    if instance.deleted:
        return "its instance is deleted"
    # During a revert the instance has a task. Without one the revert has failed: the instance is at
    # the destination, and a hard reboot recovers it there.
    is_there = instance.host == migration.dest_compute and instance.task_state is None
    if migration.migration_type == "live-migration":
        # The source's service has died after the destination took over.
        return "its instance runs at the destination" if is_there else None
    is_interrupted = migration.status == _POST_MIGRATING
    if migration.source_compute == migration.dest_compute or is_interrupted:
        # Only its flavor tells: with the old one it has what it had (:class:`AbandonedMoves`).
        is_there = is_there and _has_new_flavor(migration, instance)
    if is_there and (is_interrupted or migration.status in ("error", "reverted")):
        return "it failed or was interrupted, and its instance stays at the destination"
    return None
