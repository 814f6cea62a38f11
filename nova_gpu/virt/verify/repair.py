# SPDX-License-Identifier: Apache-2.0
"""Has Placement count what instances have: for a command, and in each period.

Only that: an allocation is a number, and the instance, its guest and its cards stay as they are.

Nova deletes the allocation of an instance whose rebuild has failed (``rebuild_instance`` of
``nova/compute/manager.py``), which a hard reboot recovers with what it had. And a write whose
answer was lost may have been done, or be done yet.
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
    """Repair one *difference* that is ``safe``, of *state*.

    :param reportclient: Nova's report client
    :raises NotRepaired: where it has changed since, or Placement does not take it
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
                    uuid, f"{difference.kind} is not for a command to repair"
                )
    except exception.NotRepaired:
        raise
    except boundary.Failure as error:
        raise exception.NotRepaired(uuid, str(error) or type(error.error).__name__) from error


def heal(
    reportclient: Any,
    read: Records,
    classes: Mapping[str, str],
    provider_uuid: str,
    allocations: Mapping[str, Any],
) -> bool:
    """Let Placement count what the host's instances have, where that is known for sure.

    Return whether it counted just that of the provider. Nothing raises.

    :param reportclient: Nova's report client
    :param read: what the database said
    :param classes: the resource class of each of the host's providers
    :param allocations: what Placement counts of the provider, by consumer
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
                    "Placement allocates %d GPUs of provider %s to it, and it has %d; will correct "
                    "that in the next period: %s",
                    *(has, provider_uuid, amount, error),
                    instance_uuid=uuid,
                )
    return agrees


def _heal(
    uuid: str, counted: Counted, classes: Mapping[str, str], reportclient: Any, *, is_short: bool
) -> None:
    """Let Placement count what one instance has.

    :param is_short: whether Placement counts fewer than the instance has

    :raises NotRepaired: where it has changed since, or Placement does not take it
    """
    context = nova_context.get_admin_context()
    instance = objects.Instance.get_by_uuid(
        context, uuid, expected_attrs=["flavor", "system_metadata"]
    )
    request = records.request_of(instance)
    if is_short:
        # Placement may only be told what the flavor says as well.
        devices = [device.parse(identifier) for _, identifier in counted]
        if gather.asked_of(request, devices) != len(devices):
            return
    elif counted or names.RELEASED not in instance.system_metadata:
        return  # for nova-gpu verify, and the operator
    _restore(context, uuid, counted, classes, reportclient)
    LOG.warning(
        "Restored the instance's allocation of %d GPUs in Placement",
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
    """Write the allocation of an instance that has none.

    :raises NotRepaired: where the instance has no longer what is *counted*
    :raises nova.exception.AllocationUpdateFailed: where Placement counts something else by now
    """
    # First: what is begun with the instance after it was read changes this, and the write fails.
    consumer = placement_client.read_consumer(reportclient, uuid)
    instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=["flavor", "resources"])
    now = {
        (resource.provider_uuid, resource.identifier)
        for resource in instance.resources or ()
        if resource.resource_class in names.RESOURCE_CLASSES
    }
    if instance.task_state or now != set(counted):
        raise exception.NotRepaired(uuid, "the instance has changed since it was compared")
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
    """Return what ``nova-manage placement heal_allocations`` would write, without the GPUs.

    That fails on a flavor with ``resources:PGPU``: it asks them of the compute node itself.
    """
    node = objects.ComputeNode.get_by_host_and_nodename(context, instance.host, instance.node)
    resources = dict(scheduler_utils.resources_from_flavor(instance, instance.flavor))
    for resource_class in names.RESOURCE_CLASSES:
        resources.pop(resource_class, None)
    return {node.uuid: {"resources": resources}}
