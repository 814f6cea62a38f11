# SPDX-License-Identifier: Apache-2.0
"""Which GPUs Nova's database counts for this host's instances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects

from nova_gpu.core import names

# (provider_uuid, identifier) of each GPU, by the instance's uuid
Records = dict[str, frozenset[tuple[str, str]]]


def read(context: nova_context.RequestContext, host: str, nodename: str) -> Records:
    """One look at the database, through the conductor; never while a claim waits.

    It names the same as ``ResourceTracker._populate_assigned_resources``: what the host's instances
    have, and what migrations from and to it keep until they are confirmed or reverted. Providers of
    other hosts may be among them, which the caller has to leave out.
    """
    records: Records = {}
    instances = objects.InstanceList.get_by_host(
        context, host, expected_attrs=["resources", "migration_context"]
    )
    by_uuid = {instance.uuid: instance for instance in instances}
    for uuid, instance in by_uuid.items():
        records[uuid] = frozenset(_gpus(instance.resources))
    for migration in objects.MigrationList.get_in_progress_and_error(context, host, nodename):
        moving = by_uuid.get(migration.instance_uuid) or _instance(context, migration)
        if moving is None or not moving.migration_context:
            continue
        sides = [(migration.source_compute, "old_resources")]
        sides += [(migration.dest_compute, "new_resources")]
        for compute, attribute in sides:
            if compute == host and attribute in moving.migration_context:
                kept = frozenset(_gpus(getattr(moving.migration_context, attribute)))
                records[moving.uuid] = records.get(moving.uuid, frozenset()) | kept
    return records


def _instance(
    context: nova_context.RequestContext, migration: objects.Migration
) -> objects.Instance | None:
    try:
        return objects.Instance.get_by_uuid(
            context, migration.instance_uuid, expected_attrs=["migration_context"]
        )
    except nova_exception.InstanceNotFound:
        return None


def _gpus(resources: Iterable[objects.Resource] | None) -> Iterator[tuple[str, str]]:
    for each in resources or ():
        if each.resource_class == names.RESOURCE_CLASS:
            yield each.provider_uuid, each.identifier
