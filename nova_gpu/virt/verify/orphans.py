# SPDX-License-Identifier: Apache-2.0
"""GPUs that Placement counts for a move that has ended, and that nobody would ever give back.

While an instance moves its old allocation is the migration's. Where nova-compute dies in a move and
the instance is deleted then, or dies just after a move was confirmed, Nova leaves that allocation
to an operator (``nova-manage placement audit``): it looks for instances of that uuid only, in
``ResourceTracker._remove_deleted_instances_allocations``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from oslo_log import log as logging

LOG = logging.getLogger(__name__)


class Orphans:
    """Looks for such allocations where what instances have has changed since the last look.

    Nobody gets one while that stays: an instance is deleted or has moved away before it is left
    behind, and a service that has died looks when it is started. Placement says in one answer how
    often each provider of a host was written to, its allocations included; who has what of one, it
    says of that one only.
    """

    def __init__(self) -> None:
        # By provider, when nothing of it was a move's
        self._settled: dict[str, int] = {}
        self._counted: Mapping[str, Collection[object]] = {}

    def release(
        self,
        reportclient: Any,
        provider_uuids: Collection[str],
        counted: Mapping[str, Collection[object]],
    ) -> None:
        """Deletes those of these providers; never while a claim waits, and nothing raises.

        :param reportclient: Nova's client of Placement
        :param counted: what the database counts, by the uuids of all instances here, about which
            nobody is asked
        """
        instances = counted.keys()
        before, self._counted = (
            self._counted,
            {uuid: each for uuid, each in counted.items() if each},
        )
        if before == self._counted and self._settled.keys() >= set(provider_uuids):
            return
        context = nova_context.get_admin_context(read_deleted="yes")
        try:
            # Any provider stands for the tree that it is in.
            tree = reportclient.get_providers_in_tree(context, min(provider_uuids))
            generations = {each["uuid"]: each["generation"] for each in tree}
        except Exception as error:  # whatever Placement or the way there raise
            LOG.warning("GPUs that ended moves keep cannot be looked for: %s", error)
            self._settled.clear()
            return
        for uuid in set(provider_uuids) & generations.keys():
            if self._settled.pop(uuid, None) == generations[uuid] or self._release(
                context, reportclient, uuid, instances
            ):
                self._settled[uuid] = generations[uuid]

    def _release(
        self,
        context: nova_context.RequestContext,
        reportclient: Any,
        provider_uuid: str,
        instances: Collection[str],
    ) -> bool:
        """Whether all that is had of the provider is instances'"""
        try:
            found = reportclient.get_allocations_for_resource_provider(context, provider_uuid)
            others = found.allocations.keys() - set(instances)
            for consumer in others:
                if reason := ended(context, consumer):
                    LOG.warning("The GPUs of migration %s are given back: %s", consumer, reason)
                    reportclient.delete_allocation_for_instance(
                        context, consumer, consumer_type="migration"
                    )
        except Exception as error:  # whatever Placement, the bus or the database raise
            LOG.warning("GPUs that ended moves keep cannot be looked for: %s", error)
            return False
        return not others


def ended(context: nova_context.RequestContext, consumer: str) -> str | None:
    """Why a consumer needs its GPUs no more; ``None`` where it may, or is no migration.

    :param context: one that reads what is deleted as well
    """
    try:
        migration = objects.Migration.get_by_uuid(context, consumer)
    except nova_exception.MigrationNotFound:
        return None
    # One that is reverted will yet be moved to the instance, which lives.
    if migration.status == "confirmed":
        return "it is confirmed"
    try:
        instance = objects.Instance.get_by_uuid(context, migration.instance_uuid)
    except nova_exception.InstanceNotFound:
        return None
    return "its instance is deleted" if instance.deleted else None
