# SPDX-License-Identifier: Apache-2.0
"""Moves that nova-compute gave up when it was started again, without giving back their GPUs.

It finds an instance in the midst of a resize, clears its task or starts its guest again at the
source (``ComputeManager._init_instance``), and that is all: Placement goes on counting the old GPUs
for the migration and the new ones for the instance, and the destination keeps the new ones for it.
Of a live migration it clears the task, too, after it had libvirt give up what was under way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.compute import vm_states
from oslo_log import log as logging

from nova_gpu.core.device import Device

LOG = logging.getLogger(__name__)

# In these the instance is still what it was, at the source.
_BEFORE_THE_MOVE = ("pre-migrating", "migrating")
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
        """Ends those of this host that were seen before; never while a claim waits, nothing raises.

        :param reportclient: Nova's client of Placement
        :param had_by: what an instance's domain here has
        """
        context = nova_context.get_admin_context()
        seen = set()
        try:
            listed = objects.MigrationList.get_in_progress_and_error(context, self._host, nodename)
            for migration in listed:
                if (instance := self._abandoned(context, migration, had_by)) is None:
                    continue
                seen.add(migration.uuid)
                if migration.uuid in self._seen:
                    _end(context, reportclient, migration, instance)
        except Exception as error:  # whatever Placement, the bus or the database raise
            LOG.warning("Moves that were given up cannot be looked for: %s", error)
        self._seen = frozenset(seen)

    def _abandoned(
        self,
        context: nova_context.RequestContext,
        migration: objects.Migration,
        had_by: Callable[[str], Collection[Device]],
    ) -> objects.Instance | None:
        """The instance of a move that nobody goes on with, ``None`` of any other."""
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
            context, migration.instance_uuid, expected_attrs=["migration_context"]
        )
        moving = instance.migration_context
        if is_live and (moving is None or moving.migration_id != migration.id):
            return None
        settled = instance.vm_state in (vm_states.ACTIVE, vm_states.STOPPED, vm_states.PAUSED)
        if instance.host == self._host and instance.task_state is None and settled:
            return instance
        return None


def _end(
    context: nova_context.RequestContext,
    reportclient: Any,
    migration: objects.Migration,
    instance: objects.Instance,
) -> None:
    """End the move as Nova does where one fails. The record last: it is what the next look goes
    by.
    """
    LOG.warning(
        "The move %s (%s) was given up when nova-compute ended: what it had is given back",
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
