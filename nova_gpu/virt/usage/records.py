# SPDX-License-Identifier: Apache-2.0
"""Nova's records of this host's instances: GPUs by the database, and requests by flavor."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from oslo_log import log as logging

from nova_gpu.core import boundary, device, names
from nova_gpu.core.flavor import request
from nova_gpu.core.flavor.request import FlavorRequest

LOG = logging.getLogger(__name__)
_SETTLED = (
    *(vm_states.ACTIVE, vm_states.STOPPED, vm_states.PAUSED),
    *(vm_states.SUSPENDED, vm_states.RESCUED),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Records:
    """One answer of the database.

    ``counted``: (provider_uuid, identifier) of each GPU or vGPU, by the instance's uuid. ``busy``:
    the instances that are here or on their way here and have a task under way: Nova may be yet to
    save their GPUs, an unshelved instance's only when its guest runs. ``returning``: those whose
    resize is being reverted and that are no longer the other host's and not yet this one's.
    ``projects``: the project of each instance in ``counted``. ``stopped``: those that are
    stopped, without a task. ``settled``: those here with which nothing is under way, so that
    Placement has to count what they have. ``has_moves``: whether the host takes part in a migration
    that has not ended, or ended in error.
    """

    counted: Mapping[str, frozenset[tuple[str, str]]]
    busy: frozenset[str] = frozenset()
    returning: frozenset[str] = frozenset()
    projects: Mapping[str, str] = dataclasses.field(default_factory=dict)
    stopped: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()
    has_moves: bool = False

    def without(self, identifier: str) -> Records:
        """Return these records without any holder of the GPU *identifier*."""
        counted = {
            uuid: frozenset(gpu for gpu in recorded if gpu[1] != identifier)
            for uuid, recorded in self.counted.items()
        }
        return dataclasses.replace(self, counted=counted)


def read(
    context: nova_context.RequestContext,
    host: str,
    nodename: str,
    guests: Collection[str],
    last: Records | None = None,
) -> Records:
    """Return one look at the database, through the conductor; never while a claim waits.

    It counts the same as ``ResourceTracker._populate_assigned_resources``: what the host's
    instances have, and what migrations from and to it keep until they are confirmed or reverted.
    One that ended in error keeps nothing once its instance is not moving any more.
    Providers of other hosts may be among them, which the caller has to leave out.

    An instance whose own record cannot be read keeps what *last* counted for it, and counts as
    busy; the others are read all the same.

    :param guests: the uuids of the domains here that have GPUs, to be looked up if need be
    :param last: the answer before this one
    """
    counted: dict[str, frozenset[tuple[str, str]]] = {}
    # First: a move that ends in between is then in the instance, and not in neither.
    migrations = objects.MigrationList.get_in_progress_and_error(context, host, nodename)
    instances = objects.InstanceList.get_by_host(
        context, host, expected_attrs=["resources", "migration_context"]
    )
    by_uuid = {instance.uuid: instance for instance in instances}
    projects: dict[str, str] = {}
    stopped: set[str] = set()
    settled: set[str] = set()
    busy: set[str] = set()
    unread: set[str] = set()

    @contextlib.contextmanager
    def alone(uuid: str) -> Iterator[None]:
        try:
            with boundary.crossed():
                yield
        except boundary.Failure as error:
            unread.add(uuid)
            LOG.warning(
                "Cannot read the GPUs in its record, it keeps its former ones: %s",
                error,
                instance_uuid=uuid,
            )

    for uuid, instance in by_uuid.items():
        with alone(uuid):
            projects[uuid] = instance.project_id
            counted[uuid] = frozenset(_gpus(instance.resources))
            if _is_busy(instance):
                busy.add(uuid)
            elif instance.vm_state == vm_states.STOPPED:
                stopped.add(uuid)
            if _is_settled(instance, migrations):
                settled.add(uuid)
    for migration in migrations:
        uuid = migration.instance_uuid
        moving = by_uuid.get(uuid) or _instance(context, uuid)
        if moving is not None and migration.dest_compute == host and _is_busy(moving):
            busy.add(uuid)
        if moving is None:
            continue
        with alone(uuid):
            if not _keeps(migration, moving):
                continue
            sides = [(migration.source_compute, "old_resources")]
            sides += [(migration.dest_compute, "new_resources")]
            for compute, attribute in sides:
                if compute == host and attribute in moving.migration_context:
                    devices_kept = frozenset(_gpus(getattr(moving.migration_context, attribute)))
                    counted[uuid] = counted.get(uuid, frozenset()) | devices_kept
                    projects[uuid] = moving.project_id
    for uuid in unread:
        before = last.counted.get(uuid) if last else None
        counted[uuid] = counted.get(uuid, frozenset()) | (before or frozenset())
    return Records(
        counted,
        frozenset(busy | unread),
        frozenset(uuid for uuid in guests if uuid not in counted and _is_returning(context, uuid)),
        projects,
        frozenset(stopped - unread),
        frozenset(settled - unread),
        has_moves=bool(migrations),
    )


def _keeps(migration: objects.Migration, instance: objects.Instance) -> bool:
    """Return whether the instance's migration context is about this migration, and counts.

    Nova leaves it with the instance when a move fails, until the next one. It names cards that are
    others' by now, or of other hosts. Of a live migration it counts as long as that lasts, as
    ``nova.compute.resource_tracker._instance_is_live_migrating`` judges.
    """
    context = instance.migration_context
    if not context or context.migration_id != migration.id:
        return False
    if migration.migration_type == "live-migration":
        return bool(instance.task_state == task_states.MIGRATING)
    return migration.status != "error" or _is_moving(instance)


def _is_moving(instance: objects.Instance) -> bool:
    """Return whether the instance is moved, as ``resource_tracker._instance_in_resize_state``."""
    moves = task_states.resizing_states + task_states.rebuild_states
    return instance.vm_state == vm_states.RESIZED or (
        instance.vm_state in (vm_states.ACTIVE, vm_states.STOPPED) and instance.task_state in moves
    )


def is_left_by_move(instance: objects.Instance, ours: Collection[str]) -> bool:
    """Return whether a failed resize or cold migration left *instance* with wrong GPUs.

    ``ComputeManager._finish_resize`` gives an instance its old flavor back where the driver fails,
    and leaves it what was claimed for the new one, for a hard reboot at the destination; where the
    call to the destination is lost, the instance is there with what it had at the source.

    :param ours: the providers of the host that the instance is on
    """
    if instance.new_flavor is None or instance.task_state in task_states.resizing_states:
        return False
    moving, own = instance.migration_context, set(_gpus(instance.resources))
    flavor_request = request_of(instance)
    if moving is None or not (own or flavor_request.asks_for_gpus or flavor_request.vgpu_words):
        return False
    if own == set(_gpus(moving.new_resources)):
        return bool(instance.flavor.id != instance.new_flavor.id)
    is_of_source = own == set(_gpus(moving.old_resources))
    return is_of_source and not any(provider in ours for provider, _ in own)


def is_claim_left(instance: objects.Instance) -> bool:
    """Return whether a failed move left a claim of what *instance* does not have, nor needs.

    In ERROR it is recovered by a hard reboot, which goes by the claim unless it has what it had
    before the move.
    """
    moving, own = instance.migration_context, set(_gpus(instance.resources))
    before, claimed = (
        set(_gpus(resources)) for resources in (moving.old_resources, moving.new_resources)
    )
    return own != claimed and (own == before or instance.vm_state != vm_states.ERROR)


def _is_busy(instance: objects.Instance) -> bool:
    return instance.task_state is not None or instance.vm_state == vm_states.BUILDING


def _is_settled(instance: objects.Instance, migrations: objects.MigrationList) -> bool:
    """Return whether nothing is under way with *instance*.

    In ERROR it may have to recover from a move that failed.
    """
    if _is_busy(instance) or instance.vm_state not in (*_SETTLED, vm_states.ERROR):
        return False
    failed = () if instance.vm_state == vm_states.ERROR else ("error",)
    return all(
        migration.instance_uuid != instance.uuid or migration.status in failed
        for migration in migrations
    )


def _is_returning(context: nova_context.RequestContext, uuid: str) -> bool:
    instance = _instance(context, uuid)
    return instance is not None and instance.task_state == task_states.RESIZE_REVERTING


def _instance(context: nova_context.RequestContext, uuid: str) -> objects.Instance | None:
    try:
        return objects.Instance.get_by_uuid(context, uuid, expected_attrs=["migration_context"])
    except nova_exception.InstanceNotFound:
        return None


def _gpus(resources: Iterable[objects.Resource] | None) -> Iterator[tuple[str, str]]:
    """Yield the GPUs of the resources.

    :raises InvalidValue: where an identifier is none
    """
    for resource in resources or ():
        if resource.resource_class in names.RESOURCE_CLASSES:
            device.parse(resource.identifier)
            yield resource.provider_uuid, resource.identifier


def request_of_flavor(flavor: objects.Flavor) -> FlavorRequest:
    """Return what *flavor* asks for; nothing where it came without its extra specs.

    Nova's object raises then, as it cannot read them later, and an instance without GPUs must not
    fail of that.
    """
    return request.of((flavor.obj_attr_is_set("extra_specs") and flavor.extra_specs) or {})


def request_of(instance: objects.Instance) -> FlavorRequest:
    """Return what the flavor of *instance* asks for; nothing where it came without its flavor."""
    try:
        flavor = instance.flavor
    except nova_exception.OrphanedObjectError:
        return request.of({})
    return request_of_flavor(flavor)
