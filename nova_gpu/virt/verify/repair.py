# SPDX-License-Identifier: Apache-2.0
"""Repair of allocations in Placement, by ``nova-gpu verify --repair`` and in each period.

An allocation is set to the number of GPUs that its instance has. The instance, its guest and its
cards stay as they are.

Allocations become wrong because Nova deletes the allocation of an instance whose rebuild has failed
(``rebuild_instance`` of ``nova/compute/manager.py``), while a hard reboot recovers the instance
with its GPUs. And after a write whose answer was lost, the allocation may have changed or not.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Collection, Mapping
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.scheduler import utils as scheduler_utils
from oslo_log import log as logging

from nova_gpu.core import boundary, device, exception, names
from nova_gpu.virt.inventory import placement_client
from nova_gpu.virt.usage import records
from nova_gpu.virt.usage.records import Records
from nova_gpu.virt.verify import gather
from nova_gpu.virt.verify.sources import Difference, Holder, HostState, Kind

LOG = logging.getLogger(__name__)
# (provider_uuid, identifier) of each GPU
Counted = Collection[tuple[str, str]]
# The resource classes of each provider's devices
Classes = Mapping[str, Collection[str]]


def repair(difference: Difference, state: HostState, reportclient: Any) -> None:
    """Correct or delete the allocation in Placement that *difference* is about.

    :param difference: a contradiction in *state* whose ``safe`` is true
    :raises NotRepaired: if the instance has changed since, or Placement refuses the allocation
    """
    context = nova_context.get_admin_context()
    uuid = difference.subject
    try:
        with boundary.crossed(exception.NotRepaired):
            if difference.kind is Kind.ALLOCATION_DIFFERS:
                counted = {(it, str(card)) for it, card in (state.instances or {})[uuid].counted}
                # nova-compute adds the class of the model in its next period.
                classes = {
                    it: (item.resource_class,) for it, item in (state.providers or {}).items()
                }
                _restore(context, uuid, counted, classes, reportclient)
            elif difference.kind is Kind.ALLOCATION_LEFT:
                moved = state.holders[uuid] is Holder.ENDED_MOVE
                consumer_type = "migration" if moved else "instance"
                reportclient.delete_allocation_for_instance(
                    context, uuid, consumer_type=consumer_type
                )
            else:
                raise exception.NotRepaired(
                    uuid, f"no command can repair {difference.kind}; do what its remedy says"
                )
    except boundary.Failure as error:
        raise exception.NotRepaired(uuid, str(error) or type(error.error).__name__) from error


def heal(
    reportclient: Any,
    read: Records,
    classes: Classes,
    provider_uuid: str,
    allocations: Mapping[str, Any],
) -> bool:
    """Correct the allocations of this host's instances from one provider; raise nothing.

    Skip instances with a task or a move. Return whether no allocation needed a correction.

    An instance that was created before its model was counted, or whose flavor states no model, then
    counts by model too.

    :param classes: as :meth:`nova_gpu.virt.inventory.assignment.Assigned.classes`
    :param allocations: by consumer
    """
    agrees = True
    for uuid, counted in read.counted.items():
        amount = sum(dev == provider_uuid for dev, _ in counted)
        resources = allocations.get(uuid, {}).get("resources", {})
        has = placement_client.gpus_in(resources)
        if all(resources.get(name, 0) == amount for name in classes[provider_uuid]):
            continue
        agrees = False
        if uuid in read.settled:
            try:
                with boundary.crossed():
                    _heal(uuid, counted, classes, reportclient, missing=amount - has)
            except boundary.Failure as error:
                LOG.warning(
                    "Placement allocates %d GPUs of provider %s to the instance, which has %d; "
                    "failed to correct that, will retry in the next period: %s",
                    *(has, provider_uuid, amount, error),
                    instance_uuid=uuid,
                )
    return agrees


def _heal(
    uuid: str, counted: Counted, classes: Classes, reportclient: Any, *, missing: int
) -> None:
    """Set the allocation of one instance to its number of GPUs, if that is right without doubt.

    More are allocated only if the instance has what its flavor requests, and fewer only if it
    released its GPUs when it was stopped.

    :param missing: how many more GPUs must be allocated, 0 if only the count by model is wrong
    """
    context = nova_context.get_admin_context()
    instance = objects.Instance.get_by_uuid(
        context, uuid, expected_attrs=["flavor", "system_metadata"]
    )
    if missing > 0:
        devices = [device.parse(identifier) for _, identifier in counted]
        if gather.asked_of(records.request_of(instance), devices) != len(devices):
            return
    elif missing and (counted or names.RELEASED not in instance.system_metadata):
        return  # left to nova-gpu verify and the operator
    _restore(context, uuid, counted, classes, reportclient)
    LOG.log(
        logging.WARNING if missing else logging.INFO,
        "Corrected the instance's allocation in Placement: it now has %d GPUs",
        len(counted),
        instance=instance,
    )


def _restore(
    context: nova_context.RequestContext,
    uuid: str,
    counted: Counted,
    classes: Classes,
    reportclient: Any,
) -> None:
    """Set the allocation of an instance to the number of GPUs in *counted*, by provider.

    :raises NotRepaired: if the instance no longer has exactly these GPUs, or Placement refuses
    :raises nova.exception.AllocationUpdateFailed: if the allocation was changed meanwhile
    """
    # First: a task that begins after the instance was read changes the consumer's generation, so
    # that the write fails.
    consumer = placement_client.read_consumer(reportclient, uuid)
    instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=["flavor", "resources"])
    now = {
        (resource.provider_uuid, resource.identifier)
        for resource in instance.resources or ()
        if resource.resource_class in names.RESOURCE_CLASSES
    }
    if instance.task_state or now != set(counted):
        raise exception.NotRepaired(
            uuid,
            "the instance has changed since it was compared, or has a task; nova-gpu verify "
            "compares it anew",
        )
    number = collections.Counter(provider for provider, _ in counted)
    amounts = {it: dict.fromkeys(classes[it], number[it]) for it in number if it in classes}
    beside = functools.partial(_of_the_host, context, instance)
    if not placement_client.write_consumer(
        reportclient, instance, consumer, classes, amounts, beside
    ):
        raise exception.NotRepaired(uuid, "Placement refuses the allocation; see its log")


def _of_the_host(
    context: nova_context.RequestContext, instance: objects.Instance
) -> dict[str, dict[str, dict[str, int]]]:
    """Return what the instance's allocation from its compute node must be: all but GPUs.

    ``nova-manage placement heal_allocations`` would write the same, but fails for a flavor with
    ``resources:PGPU``, because it would allocate the GPUs from the compute node itself.
    """
    node = objects.ComputeNode.get_by_host_and_nodename(context, instance.host, instance.node)
    resources = scheduler_utils.resources_from_flavor(instance, instance.flavor)
    own = {name: amount for name, amount in resources.items() if not names.is_gpu_class(name)}
    return {node.uuid: {"resources": own}}
