# SPDX-License-Identifier: Apache-2.0
"""The step "count" of a start: Placement and quota count what its guest is to have.

An instance that released its GPUs at a stop claims new ones: in Placement first, then in Nova's
database. Of one that has GPUs the allocation is made whole, because Nova deletes it if a rebuild
fails. Quota is judged for what was not counted before.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from nova import objects
from nova.compute import task_states
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import boundary, exception, names
from nova_gpu.core.device import Device
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.model import GroupKey
from nova_gpu.quota import limits
from nova_gpu.virt.inventory import group_choice, placement_client
from nova_gpu.virt.inventory.assignment import InstanceDevices
from nova_gpu.virt.inventory.placement_client import Amounts, Written
from nova_gpu.virt.inventory.tracker import Tracker
from nova_gpu.virt.usage import allocations, records
from nova_gpu.virt.usage.ledger import Ledger

LOG = logging.getLogger(__name__)

# What quota counts of a compute node's part of an allocation
_OF_NODE = ("VCPU", "MEMORY_MB", "DISK_GB")


def refuse_over(
    client: Any, instance: objects.Instance, deltas: Mapping[str, int], *, has_them: bool
) -> None:
    """Refuse a start whose resources would exceed the project's unified limits.

    :param deltas: what Placement has not counted for the instance before this start
    :param has_them: whether Placement counts that by now
    :raises QuotaExceeded: if a limit would be exceeded, or if the limits cannot be read
    """
    more = dict.fromkeys(deltas, 0) if has_them else deltas
    limits.refuse_over(client, instance.project_id, more, "nova-compute")


def gpus(instance: objects.Instance) -> list[objects.Resource]:
    """Return the GPUs and vGPUs that Nova's database has for the instance, on any host."""
    return [
        resource
        for resource in instance.resources or ()
        if resource.resource_class in names.RESOURCE_CLASSES
    ]


def is_without(instance: objects.Instance) -> bool:
    """Return whether the instance has no GPUs although its flavor requests some.

    An instance that released them at a stop is so until its next start. A flavor with Nova's
    ``resources:VGPU`` alone requests vGPUs of any driver, so that none are claimed for it.
    """
    if gpus(instance):
        return False
    request = records.request_of(instance)
    return bool(request.asks_for_gpus or request.vgpu_words)


@dataclasses.dataclass(frozen=True, slots=True)
class Counting:
    """The counting of what instances of one host have, outside Nova's own claims."""

    assigned: InstanceDevices
    tracker: Tracker
    ledger: Ledger

    def providers(self) -> Mapping[GroupKey, str]:
        """Return the uuids of the providers of this host's groups of GPUs and vGPUs.

        :raises ProvidersUnknown: if neither nova-gpu's file nor Placement has them
        """
        self.assigned.ask_for_providers()
        return self.assigned.provider_uuids()

    def count(self, instance: objects.Instance) -> bool:
        """Have the instance's GPUs counted before its guest starts with them.

        Return whether it had none and claimed some, which :meth:`uncount` must give back if the
        start fails.

        :raises NoneFree: if it has none and gets none: too few are free, its host is drained or
            reserved, or its project's limit is reached or cannot be read
        :raises NotCounted: if Placement or quota refuses to count what it has
        :raises ProvidersUnknown: if the providers of this host's groups are unknown
        """
        if is_without(instance):
            self._claim(instance, records.request_of(instance))
            return True
        devices = frozenset(self.assigned.devices(instance.resources))
        if devices and not self._is_counted(instance, devices):
            self._cover(instance, devices)
        return False

    def recheck(self, instance: objects.Instance, request: FlavorRequest) -> None:
        """Refuse a new instance if its allocation, with those made meanwhile, exceeds a limit.

        nova-scheduler judged it before Placement counted it, as the API does, after which
        nova-conductor checks again. Here only what these do not count is checked.

        :raises QuotaExceeded: if a limit is exceeded, or if the limits cannot be read
        """
        deltas = request.uncounted(by_model=CONF.gpu.count_models)
        if deltas and instance.task_state == task_states.SPAWNING:
            client, counted = self.assigned.placement(), dict.fromkeys(deltas, 0)
            limits.refuse_over(client, instance.project_id, counted, "nova-compute")

    @contextlib.contextmanager
    def doubted(self, instance: objects.Instance) -> Iterator[None]:
        """Wrap a part of a rebuild, after whose failure Nova deletes the instance's allocation."""
        try:
            yield
        except BaseException:
            if gpus(instance) or is_without(instance):  # else it is left to Nova
                self._doubt(instance)
            raise

    def _doubt(self, instance: objects.Instance) -> None:
        part: Mapping[str, int] = {}
        try:
            with boundary.crossed():
                part = allocations.node_part(instance)
        except boundary.Failure as error:
            LOG.warning("Cannot tell what it lacks of its host: %s", error, instance=instance)
        self.ledger.doubt_allocation(instance.uuid, part)

    def uncount(self, instance: objects.Instance, others: Collection[str] = ()) -> None:
        """Remove the instance's GPUs from its allocations in Placement.

        If that fails, the next period does it (:mod:`nova_gpu.virt.verify.repair`).

        :param others: further providers, such as those of another host after a failed move
        """
        client, ours = self.assigned.placement(), {*self.providers().values(), *others}
        if placement_client.allocations(client, instance.uuid, ours):
            placement_client.write_allocations(client, instance, ours, {}, has_them=True)

    # What it has

    def _is_counted(self, instance: objects.Instance, devices: frozenset[Device]) -> bool:
        """Return whether nothing but its guest's starts and stops has happened to the instance.

        Its domain then has its devices, and Placement, as last read, counts them. Such a guest
        starts while Placement is down, and in spite of a limit that was lowered since.
        """
        now, uuid = self.ledger.now, instance.uuid
        has_domain = devices <= now.kept_by(uuid)
        return has_domain and uuid not in now.lacking() and not devices & now.uncovered()

    def _cover(self, instance: objects.Instance, devices: frozenset[Device]) -> None:
        """Make the instance's allocation whole, if quota allows what it lacks."""
        client, classes = self.assigned.placement(), self.assigned.classes()
        number = collections.Counter(resource.provider_uuid for resource in gpus(instance))
        amounts = {
            uuid: dict.fromkeys(classes[uuid], number[uuid]) for uuid in number if uuid in classes
        }
        try:
            with boundary.crossed():
                allocated = placement_client.read_consumer(client, instance.uuid)["allocations"]
        except boundary.Failure as error:
            if devices <= self.ledger.now.kept_by(instance.uuid):
                LOG.warning("Starting with GPUs that may not be counted: %s", error)
                return
            raise exception.ProvidersUnknown(str(error)) from error
        before = {uuid: dict(item["resources"]) for uuid, item in allocated.items()}
        lacking = collections.Counter[str]()
        for uuid, resources in amounts.items():
            for name, amount in resources.items():
                lacking[name] += max(amount - before.get(uuid, {}).get(name, 0), 0)
        known = self.ledger.now.allocations
        has_node_part = known.node in before if known else bool(before)
        if not has_node_part:
            part = allocations.node_part(instance)
            lacking.update({name: part[name] for name in _OF_NODE if name in part})
        refuse_over(client, instance, lacking, has_them=False)
        if not has_node_part or +lacking:
            with self._undone(instance, {uuid: before.get(uuid, {}) for uuid in classes}):
                written = placement_client.write_allocations(
                    client,
                    instance,
                    classes,
                    amounts,
                    has_them=False,
                    reserves=self.ledger.now.reserves,
                )
                if written is not Written.WHOLE:
                    raise exception.NotCounted()
                refuse_over(client, instance, lacking, has_them=True)
        self.ledger.wrote_allocation(instance.uuid)

    @contextlib.contextmanager
    def _undone(self, instance: objects.Instance, before: Amounts) -> Iterator[None]:
        """Wrap a write of the instance's allocation; if the block fails, write *before* again."""
        try:
            yield
        except BaseException:
            try:
                with boundary.crossed():
                    placement_client.write_allocations(
                        self.assigned.placement(),
                        instance,
                        self.assigned.classes(),
                        before,
                        has_them=True,
                    )
            except boundary.Failure as error:
                LOG.warning(
                    "Cannot remove GPUs that it does not get from its allocations in Placement, "
                    "will retry in the next period: %s",
                    error,
                    instance=instance,
                )
            raise

    # What it has not

    def _claim(self, instance: objects.Instance, request: FlavorRequest) -> None:
        """Claim GPUs for an instance without any: in Placement, then in the database.

        :raises NoneFree: if too few GPUs are free for it
        :raises OverQuota: if its project has reached its limit
        """
        client, deltas = self.assigned.placement(), request.counts(by_model=CONF.gpu.count_models)
        try:
            refuse_over(client, instance, deltas, has_them=False)
            # Placement may have written the allocation although its answer was lost.
            with self._undone(instance, {}):
                amounts = self._allocate(instance, request)
                # Once more: another start of the project may have been judged at the same time.
                refuse_over(client, instance, deltas, has_them=True)
                self.tracker.hand_out(instance, amounts)
        except exception.QuotaExceeded as error:
            raise exception.OverQuota(error.reason, error.remedy, error.others) from error
        self.ledger.wrote_allocation(instance.uuid)

    def _allocate(self, instance: objects.Instance, request: FlavorRequest) -> Amounts:
        """Allocate GPUs of this host that fit the instance's flavor; return the amounts."""
        client, ours, classes = self.assigned.placement(), self.providers(), self.assigned.classes()

        def allocate(chosen: Amounts) -> Amounts | None:
            amounts = {
                uuid: dict.fromkeys(classes[uuid], sum(item.values()))
                for uuid, item in chosen.items()
            }
            written = placement_client.write_allocations(
                client, instance, set(ours.values()), amounts, has_them=False
            )
            return amounts if written is Written.WHOLE else None

        nodename = self.assigned.nodename()
        return group_choice.choose(client, nodename, instance, request, ours, allocate)
