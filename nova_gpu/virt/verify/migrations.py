# SPDX-License-Identifier: Apache-2.0
"""Moves that have ended or were given up, and never gave back their GPUs.

A nova-compute that is started again finds an instance in the midst of a resize, clears its task or
starts its guest again at the source (``ComputeManager._init_instance``), and that is all: Placement
goes on counting the old GPUs for the migration and the new ones for the instance, and the
destination keeps the new ones for it. Of a live migration it clears the task, too, after it had
libvirt give up what was under way. Where a resize on one host fails, its tracker keeps the new ones
until the next move of that instance.

While an instance moves its old allocation is the migration's. Where nova-compute dies in a move and
the instance is deleted then, or dies just after a move was confirmed, Nova leaves that allocation.
It looks for instances of that uuid only, in
``ResourceTracker._remove_deleted_instances_allocations``, and ``nova-manage placement audit`` for
allocations of ``NOVA_RCS`` of ``nova/cmd/manage.py`` only, of which ``PGPU`` is none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import vm_states
from oslo_log import log as logging

from nova_gpu.core import boundary
from nova_gpu.core.device import Device
from nova_gpu.virt.usage import records

LOG = logging.getLogger(__name__)

# In these the instance is still what it was, at the source; with an error it is that again where
# Placement did not take back what a revert, or a failure at the source, was to give back.
_BEFORE_THE_MOVE = ("pre-migrating", "migrating", "error")
_SETTLED = (vm_states.ACTIVE, vm_states.STOPPED, vm_states.PAUSED)
# Of a live migration it is that in all, as long as its domain is here.
_AS_IT_RUNS = ("accepted", "queued", "preparing", "running", "error")


class AbandonedMoves:
    """Moves that were abandoned at the last look: one under way may be between two tasks."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._seen: frozenset[str] = frozenset()

    def end(
        self, reportclient: Any, nodename: str, had_by: Callable[[str], Collection[Device]]
    ) -> None:
        """End abandoned moves of this host that were seen before; never in a claim. Raise nothing.

        :param reportclient: Nova's client of Placement
        :param had_by: what an instance's domain here has
        """
        context = nova_context.get_admin_context()
        seen = set()
        try:
            with boundary.crossed():
                listed = objects.MigrationList.get_in_progress_and_error(
                    context, self._host, nodename
                )
                for migration in listed:
                    if (instance := self._abandoned(context, migration, had_by)) is None:
                        continue
                    if _is_over(context, reportclient, migration, instance):
                        continue
                    seen.add(migration.uuid)
                    if migration.uuid in self._seen:
                        _end(context, reportclient, migration, instance)
        except boundary.Failure as error:
            LOG.warning("Failed to find or end abandoned moves: %s", error)
        self._seen = frozenset(seen)

    def _abandoned(
        self,
        context: nova_context.RequestContext,
        migration: objects.Migration,
        had_by: Callable[[str], Collection[Device]],
    ) -> objects.Instance | None:
        """Return the instance of an abandoned move, ``None`` of any other."""
        is_live = migration.migration_type == "live-migration"
        statuses = _AS_IT_RUNS if is_live else _BEFORE_THE_MOVE
        if (
            migration.source_compute != self._host
            or migration.status not in statuses
            or not (is_live or migration.migration_type in ("resize", "migration"))
            or (is_live and not had_by(migration.instance_uuid))
        ):
            return None
        instance = objects.Instance.get_by_uuid(
            context, migration.instance_uuid, expected_attrs=["migration_context", "resources"]
        )
        moving = instance.migration_context
        if is_live and (moving is None or moving.migration_id != migration.id):
            return None
        has_failed = migration.status == "error" and not is_live
        settled = instance.vm_state in _SETTLED
        if has_failed:
            settled |= instance.vm_state == vm_states.ERROR
        if instance.host == self._host and instance.task_state is None and settled:
            return instance
        return None


def _is_over(
    context: nova_context.RequestContext,
    reportclient: Any,
    migration: objects.Migration,
    instance: objects.Instance,
) -> bool:
    """Return whether a resize or cold migration that failed has nothing to give back."""
    return (
        migration.status == "error"
        and migration.migration_type != "live-migration"
        and not _is_claimed(migration, instance)
        and not reportclient.get_allocations_for_consumer(context, migration.uuid)
    )


def _is_claimed(migration: objects.Migration, instance: objects.Instance) -> bool:
    """Return whether Nova goes on counting what a failed resize claimed on the instance's own host.

    ``ResourceTracker._update_available_resource`` takes that for what the instance has, as long as
    its migration context is there.
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
    """End the move as Nova does where one fails.

    The record last: it is what the next look goes by.
    """
    LOG.warning(
        "Released the GPUs of move %s (%s), which was interrupted",
        migration.uuid,
        migration.status,
        instance=instance,
    )
    if reportclient.get_allocations_for_consumer(context, migration.uuid):
        reportclient.move_allocations(context, migration.uuid, instance.uuid)
    moving = instance.migration_context
    if moving is not None and moving.migration_id == migration.id:
        instance.drop_migration_context()
    migration.status = "error"
    migration.save()


class Orphans:
    """Allocations of moves that have ended, which are removed.

    Placement says in one answer how often each provider of a host was written to, its allocations
    included; who has what of one, it says of that one only, and is asked where that has changed.
    """

    def __init__(self) -> None:
        # By provider, when nothing of it was a move's and all else as the database says
        self._settled: dict[str, int] = {}
        self._counted: Mapping[str, Collection[object]] = {}

    def release(
        self,
        reportclient: Any,
        provider_uuids: Collection[str],
        counted: Mapping[str, Collection[object]],
        agrees: Callable[[str, Mapping[str, Any]], bool],
    ) -> None:
        """Delete orphaned allocations of these providers; never in a claim, raising nothing.

        :param reportclient: Nova's client of Placement
        :param counted: what the database counts, by the uuids of all instances here, of which
            nothing is asked
        :param agrees: compares what Placement counts of a provider, by consumer, with what those
            have; whether it is the same
        """
        if not provider_uuids:  # the service starts, and has no group yet
            return
        instances = counted.keys()
        before, self._counted = (
            self._counted,
            {uuid: provider for uuid, provider in counted.items() if provider},
        )
        if before != self._counted:
            self._settled.clear()
        context = nova_context.get_admin_context(read_deleted="yes")
        try:
            with boundary.crossed():
                # Any provider stands for the tree that it is in.
                tree = reportclient.get_providers_in_tree(context, min(provider_uuids))
                generations = {provider["uuid"]: provider["generation"] for provider in tree}
        except boundary.Failure as error:
            LOG.warning("Cannot look for GPUs that ended moves still hold: %s", error)
            self._settled.clear()
            return
        for uuid in set(provider_uuids) & generations.keys():
            if self._settled.pop(uuid, None) == generations[uuid] or self._release(
                context, reportclient, uuid, instances, agrees
            ):
                self._settled[uuid] = generations[uuid]

    def _release(
        self,
        context: nova_context.RequestContext,
        reportclient: Any,
        provider_uuid: str,
        instances: Collection[str],
        agrees: Callable[[str, Mapping[str, Any]], bool],
    ) -> bool:
        """Return whether only instances use the provider, and as much as they have."""
        try:
            with boundary.crossed():
                allocations = reportclient.get_allocations_for_resource_provider(
                    context, provider_uuid
                )
                others = allocations.allocations.keys() - set(instances)
                for consumer in others:
                    if reason := ended(context, consumer):
                        LOG.warning("Released the GPUs of migration %s: %s", consumer, reason)
                        reportclient.delete_allocation_for_instance(
                            context, consumer, consumer_type="migration"
                        )
        except boundary.Failure as error:
            LOG.warning("Cannot look for GPUs that ended moves still hold: %s", error)
            return False
        return agrees(provider_uuid, allocations.allocations) and not others


def ended(context: nova_context.RequestContext, consumer: str) -> str | None:
    """Return why a consumer no longer needs its GPUs; ``None`` where it may, or is no migration.

    :param context: one that reads what is deleted as well
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
    # While it is reverted the instance has a task. Else that failed where it is, and a hard reboot
    # recovers it there.
    is_there = instance.host == migration.dest_compute and instance.task_state is None
    if migration.status in ("error", "reverted") and is_there:
        return "it could not be reverted, and its instance stays at the destination"
    return None
