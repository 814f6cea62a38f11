# SPDX-License-Identifier: Apache-2.0
"""GPUs that Placement counts for a move that has ended, and that nobody would ever give back.

While an instance moves its old allocation is the migration's. Where nova-compute dies in a move and
the instance is deleted then, or dies just after a move was confirmed, Nova leaves that allocation
to an operator (``nova-manage placement audit``): it looks for instances of that uuid only, in
``ResourceTracker._remove_deleted_instances_allocations``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from oslo_log import log as logging

LOG = logging.getLogger(__name__)


def release(reportclient: Any, provider_uuids: Iterable[str], instances: Collection[str]) -> None:
    """Deletes such allocations of these providers; never while a claim waits, and nothing raises.

    :param reportclient: Nova's client of Placement
    :param instances: uuids that are known to be instances', about which nobody is asked
    """
    context = nova_context.get_admin_context(read_deleted="yes")
    for provider_uuid in provider_uuids:
        try:
            found = reportclient.get_allocations_for_resource_provider(context, provider_uuid)
            for consumer in found.allocations.keys() - set(instances):
                if reason := ended(context, consumer):
                    LOG.warning("The GPUs of migration %s are given back: %s", consumer, reason)
                    reportclient.delete_allocation_for_instance(
                        context, consumer, consumer_type="migration"
                    )
        except Exception as error:  # whatever Placement, the bus or the database raise
            LOG.warning("GPUs that ended moves keep cannot be looked for: %s", error)


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
