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
                classes = {it: item.resource_class for it, item in (state.providers or {}).items()}
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
    classes: Mapping[str, str],
    provider_uuid: str,
    allocations: Mapping[str, Any],
) -> bool:
    """Correct the allocations of this host's instances from one provider; raise nothing.

    Skip instances with a task or a move. Return whether no allocation needed a correction.

    :param classes: the resource class of each of the host's providers
    :param allocations: by consumer
    """
    agrees = True
    for uuid, counted in read.counted.items():
        amount = sum(dev == provider_uuid for dev, _ in counted)
        has = placement_client.gpus_in(allocations.get(uuid, {}).get("resources", {}))
        if has == amount:
            continue
        agrees = False
        if uuid in read.settled:
            try:
                with boundary.crossed():
                    _heal(uuid, counted, classes, reportclient, is_short=has < amount)
            except boundary.Failure as error:
                LOG.warning(
                    "Placement allocates %d GPUs of provider %s to the instance, which has %d; "
                    "failed to correct that, will retry in the next period: %s",
                    *(has, provider_uuid, amount, error),
                    instance_uuid=uuid,
                )
    return agrees


def _heal(
    uuid: str, counted: Counted, classes: Mapping[str, str], reportclient: Any, *, is_short: bool
) -> None:
    """Set the allocation of one instance to its number of GPUs, if that is right without doubt.

    More are allocated only if the instance has what its flavor requests, and fewer only if it
    released its GPUs when it was stopped.
    """
    context = nova_context.get_admin_context()
    instance = objects.Instance.get_by_uuid(
        context, uuid, expected_attrs=["flavor", "system_metadata"]
    )
    if is_short:
        devices = [device.parse(identifier) for _, identifier in counted]
        if gather.asked_of(records.request_of(instance), devices) != len(devices):
            return
    elif counted or names.RELEASED not in instance.system_metadata:
        return  # left to nova-gpu verify and the operator
    _restore(context, uuid, counted, classes, reportclient)
    LOG.warning(
        "Corrected the instance's allocation in Placement: it now has %d GPUs",
        len(counted),
        instance=instance,
    )


def _restore(
    context: nova_context.RequestContext,
    uuid: str,
    counted: Counted,
    classes: Mapping[str, str],
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
    amounts = {it: {classes[it]: number[it]} for it in number if it in classes}
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
    resources = dict(scheduler_utils.resources_from_flavor(instance, instance.flavor))
    for resource_class in names.RESOURCE_CLASSES:
        resources.pop(resource_class, None)
    return {node.uuid: {"resources": resources}}
