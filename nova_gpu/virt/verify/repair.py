# SPDX-License-Identifier: Apache-2.0
"""Has Placement count what instances have.

Only that: an allocation is a number, and the instance, its guest and its cards stay as they are.
"""

from __future__ import annotations

import functools
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.scheduler import utils as scheduler_utils

from nova_gpu.core import exception, names
from nova_gpu.virt.inventory import placement
from nova_gpu.virt.verify.sources import Difference, Holder, HostState, Kind


def repair(difference: Difference, state: HostState, reportclient: Any) -> None:
    """Repairs one *difference* that is ``safe``, of *state*.

    :param reportclient: Nova's report client
    :raises NotRepaired: where it has changed since, or Placement does not take it
    """
    context = nova_context.get_admin_context()
    uuid = difference.subject
    try:
        if difference.kind is Kind.ALLOCATION_DIFFERS:
            _restore(context, uuid, state, reportclient)
        elif difference.kind is Kind.ALLOCATION_LEFT:
            moved = state.holders[uuid] is Holder.ENDED_MOVE
            consumer_type = "migration" if moved else "instance"
            reportclient.delete_allocation_for_instance(context, uuid, consumer_type=consumer_type)
        else:
            raise exception.NotRepaired(uuid, f"{difference.kind} is not for a command to repair")
    except exception.NotRepaired:
        raise
    except Exception as error:  # whatever Placement, the bus or the database raise
        raise exception.NotRepaired(uuid, str(error) or type(error).__name__) from error


def _restore(
    context: nova_context.RequestContext, uuid: str, state: HostState, reportclient: Any
) -> None:
    instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=["flavor", "resources"])
    counted = (state.instances or {})[uuid].counted
    now = {
        (each.provider_uuid, each.identifier)
        for each in instance.resources or ()
        if each.resource_class in names.RESOURCE_CLASSES
    }
    if instance.task_state or now != {(provider, str(card)) for provider, card in counted}:
        raise exception.NotRepaired(uuid, "the instance has changed since it was compared")
    groups = state.providers or {}
    amounts: dict[str, dict[str, int]] = {}
    for provider_uuid, group in groups.items():
        if amount := sum(provider == provider_uuid for provider, _ in counted):
            amounts[provider_uuid] = {group.resource_class: amount}
    beside = functools.partial(_of_the_host, context, instance)
    if not placement.write_allocations(reportclient, instance, groups, amounts, beside):
        raise exception.NotRepaired(uuid, "Placement refuses the allocation; see its log")


def _of_the_host(
    context: nova_context.RequestContext, instance: objects.Instance
) -> dict[str, dict[str, dict[str, int]]]:
    """What ``nova-manage placement heal_allocations`` would write, but for the GPUs.

    That fails on a flavor with ``resources:PGPU``: it asks them of the compute node itself.
    """
    node = objects.ComputeNode.get_by_host_and_nodename(context, instance.host, instance.node)
    resources = dict(scheduler_utils.resources_from_flavor(instance, instance.flavor))
    for resource_class in names.RESOURCE_CLASSES:
        resources.pop(resource_class, None)
    return {node.uuid: {"resources": resources}}
