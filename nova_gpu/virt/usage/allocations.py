# SPDX-License-Identifier: Apache-2.0
"""The allocations from a host's providers in Placement, as they were last read."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.scheduler import utils as scheduler_utils

from nova_gpu.core import names
from nova_gpu.virt.usage import records
from nova_gpu.virt.usage.records import Records

# The resources of each consumer
ByConsumer = Mapping[str, Mapping[str, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class Allocations:
    """One answer of Placement about the providers of one host.

    ``node``: the uuid of the compute node's own provider, from which instances have their VCPUs,
    memory and disk; ``None`` before Placement has one. ``by_provider``: the allocations of this
    node's groups of GPUs, of stock Nova's providers of vGPUs and of the node itself, by the
    provider's uuid. ``generations``: those of the providers when they were read. ``lacking``: what
    an instance with GPUs lacks of its allocation from the node, by the instance's uuid.
    """

    node: str | None = None
    by_provider: Mapping[str, ByConsumer] = dataclasses.field(default_factory=dict)
    generations: Mapping[str, int] = dataclasses.field(default_factory=dict)
    lacking: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)

    def gpus(self, provider_uuid: str, consumers: Collection[str]) -> int:
        return sum(self.amount(provider_uuid, name, consumers) for name in names.RESOURCE_CLASSES)

    def amount(self, provider_uuid: str, resource_class: str, consumers: Collection[str]) -> int:
        by_consumer = self.by_provider.get(provider_uuid, {})
        return sum(by_consumer.get(uuid, {}).get(resource_class, 0) for uuid in consumers)


def read(client: Any, nodename: str, instances: Records, last: Allocations) -> Allocations:
    """Read the allocations from Placement; call this in periods, and never in a claim.

    One request returns the generations of all providers of a host. The allocations themselves take
    one request for each provider, which is made only if something may have changed: a new
    allocation changes the generation, but one that is deleted, or replaced by one from other
    providers, does not (``_set_allocations`` and ``delete_all`` in Placement's
    objects/allocation.py).

    :param instances: the host's instances, read before
    """
    context = nova_context.get_admin_context()
    root = last.node
    if root is None:
        try:
            root = client.get_provider_by_name(context, nodename)["uuid"]
        except nova_exception.ResourceProviderNotFound:
            return Allocations()
    generations = {
        provider["uuid"]: provider["generation"]
        for provider in client.get_providers_in_tree(context, root)
        if provider["uuid"] == root
        or names.parse_provider_name(nodename, provider["name"])
        or names.parse_stock_provider_name(nodename, provider["name"])
    }
    by_provider = {
        uuid: {}
        if last.generations.get(uuid) == generation and not last.by_provider[uuid]
        else _read_one(client, context, uuid)
        for uuid, generation in generations.items()
    }
    if root not in generations:  # it was removed, and another one may be made
        return Allocations()
    lacking = {
        uuid: part
        for uuid in instances.here
        if not instances.consumers(uuid) & by_provider[root].keys()
        and (part := _lacking(context, uuid, has_gpus=bool(instances.counted[uuid])))
    }
    return Allocations(root, by_provider, generations, lacking)


def _read_one(client: Any, context: nova_context.RequestContext, uuid: str) -> ByConsumer:
    answer = client.get_allocations_for_resource_provider(context, uuid)
    return {consumer: item["resources"] for consumer, item in answer.allocations.items()}


def _lacking(
    context: nova_context.RequestContext, uuid: str, *, has_gpus: bool
) -> Mapping[str, int]:
    """Return the allocation from the node of an instance that has none.

    Return an empty one for an instance without GPUs, which is left to Nova.
    """
    try:
        instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=["flavor"])
    except nova_exception.InstanceNotFound:  # it was deleted meanwhile
        return {}
    request = records.request_of(instance)
    is_ours = has_gpus or request.asks_for_gpus or request.asks_for_vgpus
    return node_part(instance) if is_ours else {}


def node_part(instance: objects.Instance) -> dict[str, int]:
    """Return what the instance's allocation from its compute node must be: all but GPUs.

    ``nova-manage placement heal_allocations`` would write the same, but fails for a flavor with
    ``resources:PGPU``, because it would allocate the GPUs from the compute node itself.
    """
    resources = scheduler_utils.resources_from_flavor(instance, instance.flavor)
    return {name: item for name, item in resources.items() if not names.is_gpu_class(name)}
