# SPDX-License-Identifier: Apache-2.0
"""Release of GPUs by stopped instances.

The flavor, the image or the host's ``[gpu]on_stop`` enables it. At a stop the GPUs are removed from
the domain first, then from Nova's database, then from Placement; at a start
(:mod:`nova_gpu.virt.inventory.counting`) they are added in the opposite order. So if the service
ends in between, the records assign more GPUs to the instance than its domain has, and the next
period completes the change. The instance's task prevents a start until then.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from nova.virt.libvirt import host as libvirt_host
from oslo_concurrency import lockutils
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import boundary, device, exception, names
from nova_gpu.core.device import Device
from nova_gpu.core.flavor.parsers import OnStop
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.virt.inventory import counting
from nova_gpu.virt.lifecycle import left_domains
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


@dataclasses.dataclass(frozen=True, slots=True)
class Stops:
    """The stops of instances that release their GPUs.

    :param parts: return the device of each device node and PCI function that a domain may name
    """

    host: libvirt_host.Host
    counting: counting.Counting
    releases: Releases
    parts: Callable[[], domains.Parts]
    # Stopped instances with nothing to release, each with its devices when that was checked
    _settled: dict[str, frozenset[Device]] = dataclasses.field(default_factory=dict)
    # Instances that a period has given a task, which may not have been cleared yet
    _tasks: set[str] = dataclasses.field(default_factory=set)

    # A stop

    def stopped(self, instance: objects.Instance) -> None:
        """Release a stopped instance's GPUs if its flavor, image or host wants it; raise nothing.

        If that fails, the next period retries it (:meth:`settle`).
        """
        if instance.task_state != task_states.POWERING_OFF or not self.counting.assigned:
            return
        try:
            with boundary.crossed():
                if own := counting.gpus(instance) and self._releasable(instance):
                    self.release(instance, own)
        except boundary.Failure as error:
            LOG.warning(
                "Cannot release the GPUs of the stopped instance, will retry in the next "
                "period: %s",
                error,
                instance=instance,
            )

    def _releasable(self, instance: objects.Instance) -> list[objects.Resource]:
        """Return the instance's devices of this host, or none if it keeps them when stopped."""
        request = records.request_of(instance)
        image = instance.system_metadata.get(names.IMAGE_ON_STOP)
        if not request.gives_back(image, OnStop(CONF.gpu.on_stop)):
            return []
        ours = set(self.counting.providers().values())
        own = [gpu for gpu in counting.gpus(instance) if gpu.provider_uuid in ours]
        # It keeps GPUs that its flavor would not request again.
        return own if len(own) == _count(request) else []

    def release_wrong(self, instance: objects.Instance, end: Callable[[], None]) -> None:
        """Release an instance's GPUs if a failed resize or migration left it the wrong ones.

        Its next start then claims GPUs for its flavor. The instance keeps its vGPUs if the flavor
        requests vGPUs by ``resources:VGPU`` only.

        :param end: stop the guest, called before the release
        """
        request = records.request_of(instance)
        if request.asks_for_vgpus and not request.vgpu_words:
            return
        if records.is_left_by_move(instance, set(self.counting.providers().values())):
            end()
            self.release(instance, counting.gpus(instance))

    def release(self, instance: objects.Instance, own: Collection[objects.Resource]) -> None:
        ours = set(self.counting.providers().values())
        devices = {
            device.parse(holding.identifier) for holding in own if holding.provider_uuid in ours
        }
        with self.releases.domain_goes(instance, devices):
            left_domains.take_out(self.host, instance, devices, self.parts())
            self.counting.tracker.release(instance, own)
        LOG.info("Released GPUs %s", ", ".join(sorted(map(str, devices))), instance=instance)
        self.counting.uncount(instance, {holding.provider_uuid for holding in own})

    def undo(self, instance: objects.Instance) -> None:
        """Release the GPUs that the instance claimed for a failed start; raise nothing."""
        try:
            with boundary.crossed():
                self.release(instance, counting.gpus(instance))
        except boundary.Failure as error:
            LOG.warning(
                "Its start failed, and its new GPUs cannot be released now, will retry in the "
                "next period: %s",
                error,
                instance=instance,
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
        own = self._releasable(instance) if instance.host == CONF.host else []
        if not own:
            return False
        self._tasks.add(uuid)
        try:
            instance.task_state = task_states.POWERING_OFF
            # As the API does at a stop, so that no user can start the instance meanwhile.
            instance.save(expected_vm_state=[vm_states.STOPPED], expected_task_state=[None])
            self.release(instance, own)
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


def _count(request: FlavorRequest) -> int:
    """Return how many GPUs the flavor requests; 0 if its extra specs cannot be parsed."""
    try:
        return sum(request.count for request in request.requests)
    except exception.InvalidExtraSpec:
        return 0
