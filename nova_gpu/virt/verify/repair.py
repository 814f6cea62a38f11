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
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from nova import context as nova_context
from nova import objects
from oslo_log import log as logging

from nova_gpu.core import boundary, exception
from nova_gpu.virt.inventory import placement_client
from nova_gpu.virt.inventory.placement_client import Written
from nova_gpu.virt.usage import records
from nova_gpu.virt.usage.ledger import Ledger, Snapshot
from nova_gpu.virt.verify.sources import Conflict, Consumer, Difference, HostState

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
            if difference.kind in (Conflict.ALLOCATION_DIFFERS, Conflict.NODE_PART_MISSING):
                counted = state.records.counted[uuid] if state.records else ()
                # nova-compute adds the class of the model in its next period.
                classes = {
                    it: (item.resource_class,) for it, item in (state.providers or {}).items()
                }
                written = _restore(context, uuid, counted, classes, reportclient)
                if written is Written.WITHOUT_NODE:
                    raise exception.NotRepaired(uuid, written.value)
            elif difference.kind is Conflict.ALLOCATION_LEFT:
                moved = state.holders[uuid] is Consumer.ENDED_MOVE
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


def heal(reportclient: Any, now: Snapshot, classes: Classes) -> bool:
    """Correct the allocations of this host's instances; raise nothing.

    An instance without a task and a move in progress, in any state, is allocated what it has, and
    the compute node's part if it has none. Fewer GPUs than now are allocated only to an instance
    that is stopped and has none. An instance that was created before its model was counted, or
    whose flavor states no model, then counts by model too.

    Return whether any allocation was written.
    """
    read, allocations = now.records, now.allocations
    if read is None or allocations is None:
        return False
    is_written = False
    for uuid in read.counted.keys() & read.idle:
        counted, consumers = read.counted[uuid], read.consumers(uuid)
        number = collections.Counter(provider for provider, _ in counted)
        ours = classes.keys() & allocations.by_provider.keys()
        has = {provider: allocations.gpus(provider, consumers) for provider in ours}
        missing = any(number[provider] > has[provider] for provider in ours)
        if uuid in read.settled:
            by_model = any(
                allocations.amount(provider, name, consumers) != number[provider]
                for provider in ours
                if number[provider] == has[provider]
                for name in classes[provider]
            )
            more = any(number[provider] < has[provider] for provider in ours)
            released = more and not counted and uuid in read.stopped
        else:
            by_model = released = False
        if not (missing or by_model or released or uuid in allocations.lacking):
            continue
        try:
            with boundary.crossed():
                context = nova_context.get_admin_context()
                written = _restore(context, uuid, counted, classes, reportclient, now.reserves)
                is_written = True
        except boundary.Failure as error:
            LOG.warning(
                "Placement allocates %d GPUs to the instance, which has %d; failed to correct "
                "that, will retry in the next period: %s",
                sum(has.values()),
                number.total(),
                error,
                instance_uuid=uuid,
            )
            continue
        LOG.log(
            logging.INFO if by_model else logging.WARNING,
            "Corrected the instance's allocation in Placement: it now has %d GPUs; %s",
            number.total(),
            written.value,
            instance_uuid=uuid,
        )
    return is_written


def heal_doubtful(placement: Callable[[], Any], ledger: Ledger, classes: Classes) -> None:
    """Correct the allocations that Nova may just have deleted; raise nothing.

    Call this when Nova publishes the host's inventories, as it does right after it has refused a
    rebuild: the guest runs on, and would not be counted until the next period. An instance with a
    task is left until then.
    """
    context = nova_context.get_admin_context()
    for uuid in tuple(ledger.now.doubtful):
        try:
            with boundary.crossed():
                instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=["resources"])
                if instance.task_state is None:
                    _restore(
                        context,
                        uuid,
                        set(records.identifiers(instance.resources)),
                        classes,
                        placement(),
                        ledger.now.reserves,
                    )
                    ledger.wrote_allocation(uuid)
        except boundary.Failure as error:
            LOG.warning(
                "Failed to correct the instance's allocation in Placement, will retry in the next "
                "period: %s",
                error,
                instance_uuid=uuid,
            )


def _restore(
    context: nova_context.RequestContext,
    uuid: str,
    counted: Counted,
    classes: Classes,
    reportclient: Any,
    reserves: placement_client.Amounts = MappingProxyType({}),
) -> Written:
    """Set the allocation of an instance to the number of GPUs in *counted*, by provider.

    :raises NotRepaired: if the instance no longer has exactly these GPUs, or Placement refuses
    :raises nova.exception.AllocationUpdateFailed: if the allocation was changed meanwhile
    """
    # First: a task that begins after the instance was read changes the consumer's generation, so
    # that the write fails.
    consumer = placement_client.read_consumer(reportclient, uuid)
    instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=["flavor", "resources"])
    if instance.task_state or set(records.identifiers(instance.resources)) != set(counted):
        raise exception.NotRepaired(
            uuid,
            "the instance has changed since it was compared, or has a task; nova-gpu verify "
            "compares it anew",
        )
    number = collections.Counter(provider for provider, _ in counted)
    amounts = {it: dict.fromkeys(classes[it], number[it]) for it in number if it in classes}
    written = placement_client.write_consumer(
        reportclient,
        instance,
        consumer,
        classes,
        amounts,
        has_them=True,
        reserves=reserves,
    )
    if written is Written.NONE:
        raise exception.NotRepaired(uuid, "Placement refuses the allocation; see its log")
    return written
