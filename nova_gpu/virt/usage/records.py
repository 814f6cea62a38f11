# SPDX-License-Identifier: Apache-2.0
"""Nova's records of this host's instances: their GPUs in the database, and their flavors."""

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
from nova_gpu.core.device import Device
from nova_gpu.core.flavor import request
from nova_gpu.core.flavor.request import FlavorRequest

LOG = logging.getLogger(__name__)
_SETTLED = (
    *(vm_states.ACTIVE, vm_states.STOPPED, vm_states.PAUSED),
    *(vm_states.SUSPENDED, vm_states.RESCUED),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Records:
    """One answer of the database about this host's instances, named by their uuids.

    ``counted``: (provider_uuid, identifier) of each card or vGPU that the database counts for an
    instance, by the instance's uuid.
    ``busy``: the instances with a task that are here or on their way here. Nova may not have saved
    their GPUs yet; it saves those of an unshelved instance only when its guest runs.
    ``returning``: the instances whose resize is being reverted and whose GPUs the database counts
    neither for the other host nor for this one.
    ``projects``: the project of each instance in ``counted``.
    ``stopped``: the instances that are stopped and have no task.
    ``settled``: the instances here without a task or a move, so that their allocations in Placement
    must equal their GPUs.
    ``idle``: the instances here, in any state, without a task and a move in progress, so that their
    allocations must cover their GPUs.
    ``here``: the instances of this host, with GPUs or without, but for those that are deleted now.
    ``own``: (provider_uuid, identifier) of what each instance of this host has by its own record,
    without what its moves have claimed or keep. ``users``: the user of each of them.
    ``migrations``: the migrations of each instance from or to this host that have not ended, or
    ended in error: they may have allocations for the instance.
    """

    counted: Mapping[str, frozenset[tuple[str, str]]]
    busy: frozenset[str] = frozenset()
    returning: frozenset[str] = frozenset()
    projects: Mapping[str, str] = dataclasses.field(default_factory=dict)
    stopped: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    here: frozenset[str] = frozenset()
    migrations: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    own: Mapping[str, frozenset[tuple[str, str]]] = dataclasses.field(default_factory=dict)
    users: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def consumers(self, instance_uuid: str) -> frozenset[str]:
        """Return the consumers in Placement that may have allocations for the instance."""
        return self.migrations.get(instance_uuid, frozenset()) | {instance_uuid}

    def devices(self, instance_uuid: str) -> frozenset[Device]:
        return frozenset(device.parse(text) for _, text in self.counted.get(instance_uuid, ()))

    def without(self, identifier: str) -> Records:
        """Return these records without the card or vGPU *identifier* in ``counted``."""
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
    """Read the records from the database, through the conductor; never call it in a claim.

    The GPUs are those that ``ResourceTracker._populate_assigned_resources`` takes as assigned: of
    the host's instances, and of migrations from and to this host until they are confirmed or
    reverted. A migration that ended in error has none once its instance is no longer moving. The
    GPUs may also be of other hosts' providers, which the caller must leave out.

    If one instance's record cannot be read, the GPUs in *last* stay counted for it, and it is busy;
    the others are read all the same.

    :param guests: the uuids of the domains here that have GPUs; those without counted GPUs are
        looked up, because their instances may be ``returning``
    :param last: the answer before this one
    """
    counted: dict[str, frozenset[tuple[str, str]]] = {}
    # First: the GPUs of a move that ends in between are then read from the instance, not missed.
    migrations = objects.MigrationList.get_in_progress_and_error(context, host, nodename)
    instances = objects.InstanceList.get_by_host(
        context, host, expected_attrs=["resources", "migration_context"]
    )
    by_uuid = {instance.uuid: instance for instance in instances}
    projects: dict[str, str] = {}
    own_resources: dict[str, frozenset[tuple[str, str]]] = {}
    users: dict[str, str] = {}
    stopped: set[str] = set()
    settled: set[str] = set()
    idle: set[str] = set()
    here: set[str] = set()
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
                "Cannot read the instance's GPUs in Nova's database, its last known ones count: %s",
                error,
                instance_uuid=uuid,
            )

    for uuid, instance in by_uuid.items():
        with alone(uuid):
            projects[uuid], users[uuid] = instance.project_id, instance.user_id
            own_resources[uuid] = counted[uuid] = frozenset(identifiers(instance.resources))
            if _is_busy(instance):
                busy.add(uuid)
            elif instance.vm_state == vm_states.STOPPED:
                stopped.add(uuid)
            if _is_settled(instance, migrations):
                settled.add(uuid)
            if _is_idle(instance, migrations):
                idle.add(uuid)
            is_gone = instance.vm_state == vm_states.DELETED  # and its row soon is
            is_gone |= instance.task_state in (task_states.DELETING, task_states.SOFT_DELETING)
            if not is_gone:
                here.add(uuid)
    # Nova keeps a failed migration until its instance is deleted: an instance may have hundreds.
    by_instance: dict[str, list[objects.Migration]] = {}
    for migration in migrations:
        by_instance.setdefault(migration.instance_uuid, []).append(migration)
    for uuid, own in by_instance.items():
        with alone(uuid):
            moving = by_uuid.get(uuid) or _instance(context, uuid)
            if moving is None:
                continue
            for migration in own:
                if migration.dest_compute == host and _is_busy(moving):
                    busy.add(uuid)
                if not _keeps(migration, moving):
                    continue
                sides = [(migration.source_compute, "old_resources")]
                sides += [(migration.dest_compute, "new_resources")]
                for compute, attribute in sides:
                    if compute == host and attribute in moving.migration_context:
                        gpus = frozenset(identifiers(getattr(moving.migration_context, attribute)))
                        counted[uuid] = counted.get(uuid, frozenset()) | gpus
                        projects[uuid] = moving.project_id
    returning: set[str] = set()
    for uuid in set(guests) - counted.keys() - unread:
        with alone(uuid):
            if _is_returning(context, uuid):
                returning.add(uuid)
    for uuid in unread:
        before = last.counted.get(uuid) if last else None
        counted[uuid] = counted.get(uuid, frozenset()) | (before or frozenset())
        if last and uuid in by_uuid and uuid in last.own:
            own_resources[uuid] = last.own[uuid]
    return Records(
        counted,
        frozenset(busy | unread),
        frozenset(returning),
        projects,
        frozenset(stopped - unread),
        frozenset(settled - unread),
        frozenset(idle - unread),
        frozenset(here - unread),
        {uuid: frozenset(item.uuid for item in own) for uuid, own in by_instance.items()},
        own_resources,
        users,
    )


def _keeps(migration: objects.Migration, instance: objects.Instance) -> bool:
    """Return whether *migration* still has the GPUs in the instance's migration context.

    After a failed move, Nova leaves the context with the instance until the next move. Its cards
    may be other instances' by now, or another host's. The context of a live migration counts while
    that lasts, as ``nova.compute.resource_tracker._instance_is_live_migrating`` decides.
    """
    context = instance.migration_context
    if not context or context.migration_id != migration.id:
        return False
    if migration.migration_type == "live-migration":
        return bool(instance.task_state == task_states.MIGRATING)
    return migration.status != "error" or _is_moving(instance)


def _is_moving(instance: objects.Instance) -> bool:
    """Return whether a resize, cold migration, evacuation or rebuild of the instance is unfinished.

    Nova decides the same in ``resource_tracker._instance_in_resize_state``.
    """
    moves = task_states.resizing_states + task_states.rebuild_states
    return instance.vm_state == vm_states.RESIZED or (
        instance.vm_state in (vm_states.ACTIVE, vm_states.STOPPED) and instance.task_state in moves
    )


def is_left_by_move(instance: objects.Instance, ours: Collection[str]) -> bool:
    """Return whether a failed resize or cold migration left *instance* with wrong GPUs.

    If the driver fails, ``ComputeManager._finish_resize`` gives the instance its old flavor back,
    but leaves it the GPUs that were claimed for the new one, for a hard reboot at the destination.
    If the call to the destination is lost, the instance is there with its GPUs of the source.

    :param ours: the providers of the instance's present host
    """
    if instance.new_flavor is None or instance.task_state in task_states.resizing_states:
        return False
    moving, own = instance.migration_context, set(identifiers(instance.resources))
    flavor_request = request_of(instance)
    if moving is None or not (own or flavor_request.asks_for_gpus or flavor_request.vgpu_words):
        return False
    if own == set(identifiers(moving.new_resources)):
        return bool(instance.flavor.id != instance.new_flavor.id)
    is_of_source = own == set(identifiers(moving.old_resources))
    # On one host the end of a revert was lost: the instance has its old GPUs, and the new flavor.
    old_flavor = instance.old_flavor if instance.obj_attr_is_set("old_flavor") else None
    has_new_flavor = instance.flavor.id == instance.new_flavor.id
    is_half_reverted = has_new_flavor and old_flavor and old_flavor.id != instance.flavor.id
    is_elsewhere = not any(provider in ours for provider, _ in own)
    return is_of_source and bool(is_elsewhere or is_half_reverted)


def is_claim_left(instance: objects.Instance) -> bool:
    """Return whether a failed move left GPUs claimed that *instance* neither has nor needs.

    They are in its migration context. An instance in ERROR may need them: a hard reboot recovers it
    with the claimed GPUs, unless it has the GPUs of before the move.
    """
    moving, own = instance.migration_context, set(identifiers(instance.resources))
    before, claimed = (
        set(identifiers(resources)) for resources in (moving.old_resources, moving.new_resources)
    )
    return own != claimed and (own == before or instance.vm_state != vm_states.ERROR)


def _is_busy(instance: objects.Instance) -> bool:
    return instance.task_state is not None or instance.vm_state == vm_states.BUILDING


def _is_settled(instance: objects.Instance, migrations: objects.MigrationList) -> bool:
    """Return whether *instance* has no task and no move in progress.

    An instance in ERROR is not settled after a failed move: it may have to recover from it.
    """
    if instance.vm_state == vm_states.ERROR:
        own = any(migration.instance_uuid == instance.uuid for migration in migrations)
        return not own and not _is_busy(instance)
    return instance.vm_state in _SETTLED and _is_idle(instance, migrations)


def _is_idle(instance: objects.Instance, migrations: objects.MigrationList) -> bool:
    if _is_busy(instance) or instance.vm_state == vm_states.RESIZED:
        return False
    return all(
        migration.instance_uuid != instance.uuid or migration.status == "error"
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


def identifiers(resources: Iterable[objects.Resource] | None) -> Iterator[tuple[str, str]]:
    """Yield provider uuid and identifier of each card and vGPU among *resources*."""
    for resource in resources or ():
        if resource.resource_class in names.RESOURCE_CLASSES:
            device.parse(resource.identifier)  # raises InvalidValue
            yield resource.provider_uuid, resource.identifier


def request_of_flavor(flavor: objects.Flavor) -> FlavorRequest:
    """Return what *flavor* requests; an empty request if it was loaded without its extra specs.

    Nova cannot load extra specs later and raises, which must not fail an instance without GPUs.
    """
    return request.of((flavor.obj_attr_is_set("extra_specs") and flavor.extra_specs) or {})


def request_of(instance: objects.Instance) -> FlavorRequest:
    """Return what the instance's flavor requests; nothing if it was loaded without its flavor."""
    try:
        flavor = instance.flavor
    except nova_exception.OrphanedObjectError:
        return request.of({})
    return request_of_flavor(flavor)
