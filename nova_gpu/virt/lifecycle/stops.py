# SPDX-License-Identifier: Apache-2.0
"""Release of GPUs by stopped instances, and claims of new GPUs before their next start.

The flavor, the image or the host's ``[gpu]on_stop`` enables it. At a stop the GPUs are removed from
the domain first, then from Nova's database, then from Placement; at a start they are added in the
opposite order. So if the service ends in between, the records assign more GPUs to the instance than
its domain has, and the next period completes the change. The instance's task prevents a start until
then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from nova.virt.libvirt import host as libvirt_host
from oslo_concurrency import lockutils
from oslo_log import log as logging
from oslo_utils import timeutils

from nova_gpu.conf import CONF
from nova_gpu.core import boundary, device, exception, names
from nova_gpu.core.device import Device
from nova_gpu.core.flavor import query, request_group, summary
from nova_gpu.core.flavor.parsers import OnStop
from nova_gpu.core.flavor.request import FlavorRequest, Request
from nova_gpu.core.model import GroupKey
from nova_gpu.core.placement import reserved_hosts
from nova_gpu.core.scheduling import capacity
from nova_gpu.core.scheduling.capacity import Group
from nova_gpu.virt.inventory import placement_client
from nova_gpu.virt.inventory.assignment import Assigned
from nova_gpu.virt.inventory.tracker import Tracker
from nova_gpu.virt.lifecycle import left_domains, quota
from nova_gpu.virt.lifecycle.releases import Releases
from nova_gpu.virt.usage import domains, records
from nova_gpu.virt.usage.ledger import Snapshot

LOG = logging.getLogger(__name__)

# Errors that mean that Nova changes the instance at this moment
_GOES_ON = (
    lockutils.AcquireLockFailedException,
    nova_exception.InstanceUpdateConflict,
    nova_exception.InstanceNotFound,
)

_ELSEWHERE = "start it when some are free, or have it come to another host: shelve and unshelve it"
_MOVES = "openstack gpu start has it come to another host; or start it when some are free here"


@dataclasses.dataclass(frozen=True, slots=True)
class Stops:
    """The stops of instances that release their GPUs, and the claims at their next start.

    :param parts: return the device of each device node and PCI function that a domain may name
    """

    host: libvirt_host.Host
    tracker: Tracker
    releases: Releases
    assigned: Assigned
    parts: Callable[[], domains.Parts]
    # Stopped instances with nothing to release, each with its devices when that was checked
    _settled: dict[str, frozenset[Device]] = dataclasses.field(default_factory=dict)
    # Instances that a period has given a task, which may not have been cleared yet
    _tasks: set[str] = dataclasses.field(default_factory=set)

    def _providers(self) -> Mapping[GroupKey, str]:
        """Return the uuids of the providers of this host's groups of GPUs and vGPUs.

        :raises ProvidersUnknown: if neither nova-gpu's file nor Placement has them
        """
        self.assigned.ask_for_providers()
        return self.assigned.provider_uuids()

    # A stop

    def stopped(self, instance: objects.Instance) -> None:
        """Release a stopped instance's GPUs if its flavor, image or host wants it; raise nothing.

        If that fails, the next period retries it (:meth:`settle`).
        """
        if instance.task_state != task_states.POWERING_OFF or not self.assigned:
            return
        try:
            with boundary.crossed():
                if own := _gpus(instance) and self._to_give_back(instance):
                    self._give_back(instance, own)
        except boundary.Failure as error:
            LOG.warning(
                "Cannot release the GPUs of the stopped instance, will retry in the next "
                "period: %s",
                error,
                instance=instance,
            )

    def _to_give_back(self, instance: objects.Instance) -> list[objects.Resource]:
        """Return the instance's devices of this host, or none if it keeps them when stopped."""
        request = records.request_of(instance)
        image = instance.system_metadata.get(names.IMAGE_ON_STOP)
        if not request.gives_back(image, OnStop(CONF.gpu.on_stop)):
            return []
        ours = set(self._providers().values())
        own = [gpu for gpu in _gpus(instance) if gpu.provider_uuid in ours]
        # It keeps GPUs that its flavor would not request again.
        return own if len(own) == _count(request) else []

    def give_up(self, instance: objects.Instance, end: Callable[[], None]) -> None:
        """Release an instance's GPUs if a failed resize or migration left it the wrong ones.

        Its next start then claims GPUs for its flavor. The instance keeps its vGPUs if the flavor
        requests vGPUs by ``resources:VGPU`` only.

        :param end: stop the guest, called before the release
        """
        request = records.request_of(instance)
        if request.asks_for_vgpus and not request.vgpu_words:
            return
        if records.is_left_by_move(instance, set(self._providers().values())):
            end()
            self._give_back(instance, _gpus(instance))

    def _give_back(self, instance: objects.Instance, own: Collection[objects.Resource]) -> None:
        ours = set(self._providers().values())
        devices = {
            device.parse(holding.identifier) for holding in own if holding.provider_uuid in ours
        }
        with self.releases.domain_goes(instance, devices):
            left_domains.take_out(self.host, instance, devices, self.parts())
            # First: a start that finds no GPUs then knows that the instance is to get some.
            instance.system_metadata[names.RELEASED] = "true"
            instance.save()
            self.tracker.take_back(instance, own)
        LOG.info("Released GPUs %s", ", ".join(sorted(map(str, devices))), instance=instance)
        self._count_none(instance, {holding.provider_uuid for holding in own})

    def _count_none(self, instance: objects.Instance, others: Collection[str] = ()) -> None:
        """Remove the instance's GPUs from its allocations in Placement.

        If that fails, the next period does it (:mod:`nova_gpu.virt.verify.repair`).

        :param others: further providers, such as those of another host after a failed move
        """
        client, ours = self.assigned.placement(), {*self._providers().values(), *others}
        if placement_client.allocations(client, instance.uuid, ours):
            placement_client.write_allocations(client, instance, ours, {}, has_them=True)

    # A start

    def is_released(self, instance: objects.Instance, request: FlavorRequest) -> bool:
        """Return whether the instance released its GPUs at a stop and has none now."""
        if not (request.asks_for_gpus or request.vgpu_words) or _gpus(instance):
            return False
        return names.RELEASED in instance.system_metadata

    @contextlib.contextmanager
    def starting(self, instance: objects.Instance, request: FlavorRequest) -> Iterator[bool]:
        """Wrap a start; yield whether the instance got new GPUs for it.

        It gets them if it released its own at a stop. If the start fails, they are released.

        :raises NoneFree: if it gets none: too few are free, its host is drained or reserved, or its
            project's limit is reached or cannot be read
        :raises ProvidersUnknown: if the providers of this host's groups are unknown
        """
        if not self.is_released(instance, request):
            yield False
            return
        self.take_again(instance, request)
        try:
            yield True
        except BaseException:
            try:
                with boundary.crossed():
                    self._give_back(instance, _gpus(instance))
            except boundary.Failure as error:
                LOG.warning(
                    "Its start failed, and its new GPUs cannot be released now, will retry in the "
                    "next period: %s",
                    error,
                    instance=instance,
                )
            raise

    def take_again(self, instance: objects.Instance, request: FlavorRequest) -> None:
        """Claim GPUs for an instance that released its own: in Placement, then in the database.

        :param request: the request of its flavor
        :raises NoneFree: if too few GPUs are free for it
        :raises OverQuota: if its project has reached its limit
        """
        client = self.assigned.placement()
        quota.refuse_over(client, instance, request, has_them=False)
        try:
            # Inside: Placement may have written the allocation although its answer was lost.
            amounts = self._find(instance, request, self._providers())
            # Once more: another start of the project may have been checked at the same time.
            quota.refuse_over(client, instance, request, has_them=True)
            self.tracker.hand_out(instance, amounts)
        except BaseException:
            try:
                with boundary.crossed():
                    self._count_none(instance)
            except boundary.Failure as error:
                LOG.warning(
                    "Cannot remove GPUs that it does not get from its allocations in Placement, "
                    "will retry in the next period: %s",
                    error,
                    instance=instance,
                )
            raise

    def _find(
        self, instance: objects.Instance, flavor: FlavorRequest, ours: Mapping[GroupKey, str]
    ) -> placement_client.Amounts:
        """Choose groups of GPUs for the instance and allocate from them; return the amounts.

        :param ours: the uuid of the provider of each group of this host
        :raises NoneFree: if Placement accepts no combination of groups for the flavor
        """
        client = self.assigned.placement()
        remedy = _remedy(flavor)
        self._refuse_closed(client, flavor, remedy)
        groups = {uuid: _group(client, key, uuid) for key, uuid in ours.items()}
        known = frozenset[str]().union(*(group.traits for group in groups.values()))
        choices = []
        for request in flavor.requests:
            of_kind = {
                uuid: groups[uuid]
                for key, uuid in ours.items()
                if device.resource_class_of(key) == request.resource_class
            }
            ways = list(_ways(instance, flavor, request, of_kind, known))
            if not ways:
                raise self._none_free(client, request, of_kind, remedy)
            choices.append((request, of_kind, ways))
        classes = self.assigned.classes()
        for chosen in itertools.product(*(ways for _, _, ways in choices)):
            amounts = {
                uuid: dict.fromkeys(classes[uuid], sum(item.values()))
                for way in chosen
                for uuid, item in way.items()
            }
            # Placement decides: another instance may have got the GPUs since they were read.
            written = placement_client.write_allocations(
                client, instance, set(ours.values()), amounts, has_them=False
            )
            if written is placement_client.Written.WHOLE:
                return amounts
        request, of_kind, _ = choices[0]
        raise self._none_free(client, request, of_kind, remedy)

    def _refuse_closed(self, client: Any, request: FlavorRequest, remedy: str) -> None:
        """Refuse the start on a drained host, and of a preemptible instance on a reserved host.

        :raises NoneFree: if the start is refused
        """
        context = nova_context.get_admin_context()
        node = client.get_provider_by_name(context, self.assigned.nodename())["uuid"]
        traits = placement_client.get(client, f"/resource_providers/{node}/traits")["traits"]
        if names.DRAINED in traits:
            raise exception.NoneFree("its host is drained", remedy)
        if request.is_preemptible and reserved_hosts.in_force(traits, timeutils.utcnow()):
            raise exception.NoneFree(
                "its host's GPUs are reserved for instances that are not preemptible, for now",
                remedy,
            )

    def _none_free(
        self, client: Any, request: Request, groups: Mapping[str, Group], remedy: str
    ) -> exception.NoneFree:
        """Return the error for too few free GPUs in *groups*.

        In the log it also names the instances that have GPUs of *groups*.
        """
        context = nova_context.get_admin_context()
        holders: set[str] = set()
        for uuid in groups:
            holders |= client.get_allocations_for_resource_provider(
                context, uuid
            ).allocations.keys()
        most = max((group.free for group in groups.values()), default=0)
        return exception.NoneFree(
            f"{summary.all_of(request)} asked for, at most {most} free on its host",
            remedy,
            f"in use by {', '.join(sorted(holders)) or 'no instance'}",
        )

    # A period

    def settle(self, usage: Snapshot) -> None:
        """Release the GPUs of stopped instances that should have none; call this in each period.

        An instance still has GPUs if the release at its stop failed or was interrupted, or if it
        was moved here while it was stopped.
        """
        context = nova_context.get_admin_context()
        now = {uuid: usage.counted_for(uuid) for uuid in usage.stopped()}
        for uuid in {uuid for uuid in now if self._settled.get(uuid) != now[uuid]} | self._tasks:
            try:
                with (
                    boundary.crossed(*_GOES_ON),
                    # Nova deletes an instance in spite of its task, but holds this lock for it.
                    lockutils.lock(uuid, "nova-", blocking=False),
                ):
                    if self._settle(context, uuid):
                        now.pop(uuid, None)  # its devices have changed since they were read
            except _GOES_ON:
                now.pop(uuid, None)  # Nova changes it: the next period checks it again
            except boundary.Failure as error:
                now.pop(uuid, None)
                LOG.warning(
                    "Cannot release the GPUs of the stopped instance, will retry in the next "
                    "period: %s",
                    error,
                    instance_uuid=uuid,
                )
        self._settled.clear()
        self._settled.update(now)

    def _settle(self, context: nova_context.RequestContext, uuid: str) -> bool:
        """Release the GPUs of a stopped instance; return whether it had any to release.

        Set the task of a stop meanwhile, so that no user can start the instance.
        """
        if uuid in self._tasks:
            self._end_task(context, uuid)
        instance = objects.Instance.get_by_uuid(
            context, uuid, expected_attrs=["flavor", "system_metadata", "resources"]
        )
        own = self._to_give_back(instance) if instance.host == CONF.host else []
        if not own:
            return False
        self._tasks.add(uuid)
        try:
            instance.task_state = task_states.POWERING_OFF
            # As the API does at a stop, so that no user can start the instance meanwhile.
            instance.save(expected_vm_state=[vm_states.STOPPED], expected_task_state=[None])
            self._give_back(instance, own)
        finally:
            self._end_task(context, uuid)
        return True

    def _end_task(self, context: nova_context.RequestContext, uuid: str) -> None:
        """Clear the instance's task if it is the one that :meth:`_settle` sets."""
        with contextlib.suppress(nova_exception.InstanceNotFound):
            instance = objects.Instance.get_by_uuid(context, uuid)
            # Only this module sets this task for an instance that is STOPPED.
            has_it = instance.task_state == task_states.POWERING_OFF
            if has_it and instance.vm_state == vm_states.STOPPED:
                instance.task_state = None
                instance.save(expected_task_state=[task_states.POWERING_OFF])
        self._tasks.discard(uuid)


def _gpus(instance: objects.Instance) -> list[objects.Resource]:
    return [
        resource
        for resource in instance.resources or ()
        if resource.resource_class in names.RESOURCE_CLASSES
    ]


def _count(request: FlavorRequest) -> int:
    """Return how many GPUs the flavor requests; 0 if its extra specs cannot be parsed."""
    try:
        return sum(request.count for request in request.requests)
    except exception.InvalidExtraSpec:
        return 0


def _remedy(request: FlavorRequest) -> str:
    """Return the text for the user about what to do if the host has too few free GPUs."""
    with contextlib.suppress(exception.InvalidExtraSpec):
        return _MOVES if request.on_stop_move else _ELSEWHERE
    return _ELSEWHERE


def _group(client: Any, key: GroupKey, uuid: str) -> Group:
    url = f"/resource_providers/{uuid}"
    resource_class = device.resource_class_of(key)
    inventory = placement_client.get(client, f"{url}/inventories")["inventories"].get(
        resource_class, {}
    )
    return Group(
        total=inventory.get("total", 0),
        reserved=inventory.get("reserved", 0),
        used=placement_client.get(client, f"{url}/usages")["usages"].get(resource_class, 0),
        traits=frozenset(placement_client.get(client, f"{url}/traits")["traits"]),
    )


def _ways(
    instance: objects.Instance,
    flavor: FlavorRequest,
    request: Request,
    groups: Mapping[str, Group],
    known: Collection[str],
) -> Iterator[placement_client.Amounts]:
    """Yield each combination of amounts from *groups* that has enough free GPUs for *request*.

    :param groups: the groups of the request's resource class, by the uuid of their provider
    :param known: the traits of all groups of this host
    """
    parts = query.resolved(request, known)
    if parts is None:
        return
    uuids = list(groups)
    of_image = instance.image_meta.properties.get("traits_required", ())
    image = frozenset(filter(request_group.is_gpu_trait, of_image))
    for way in capacity.ways(parts, list(groups.values()), isolate=flavor.is_isolated):
        if not image <= frozenset().union(*(groups[uuids[index]].traits for index in way)):
            continue
        amounts: dict[str, dict[str, int]] = {}
        for part, index in zip(parts, way, strict=True):
            of_group = amounts.setdefault(uuids[index], {request.resource_class: 0})
            of_group[request.resource_class] += part.count
        yield amounts
