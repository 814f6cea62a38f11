# SPDX-License-Identifier: Apache-2.0
"""The takeover of instances with GPUs of stock Nova: what is changed, in which order.

The guests stay as they are: their domains and devices are not touched. nova-compute does not run,
so no claim, period or task of this host comes in between. Each step is one write that is whole or
not done, and finds out what there is before it: a takeover that was interrupted goes on by itself.

For each instance, a card is first counted in Placement for nova-gpu's group, and no longer for
stock Nova's device, in one request (``POST /reshaper``). Then its request spec is changed, and
after it the instance's own records, in one write of the database, without the requests by which
stock Nova gave it the functions. Nova's rows of these go last; if this ends before, nova-gpu's
driver removes them when it starts (:mod:`nova_gpu.virt.usage.stock_records`). Until they go these
rows keep the card from other instances of stock Nova, and from the first step
on nova-gpu's group has no free card: its inventory is reserved but for what is counted, until
nova-compute offers the others.

An instance that has become busy, or is gone, raises NotTakenOver, and nothing of it is changed.

"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import provider_tree
from nova.virt.libvirt import host as libvirt_host

from nova_gpu import notifications
from nova_gpu.core import device, exception, metadata_text, names
from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress, Product
from nova_gpu.core.placement import inventory
from nova_gpu.notifications import EventType
from nova_gpu.virt.inventory import discovery, pool
from nova_gpu.virt.usage import stock_records
from nova_gpu_migrate.core.former import Former
from nova_gpu_migrate.core.stock_holding import NotTakenOver, StockDelivery, StockHolding
from nova_gpu_migrate.virt import definitions, providers, records
from nova_gpu_migrate.virt.shadow import Shadow, ShadowGroup

# By consumer
AllocationsByConsumer = dict[str, Any]
# Another process, such as the scheduler, may write to the providers meanwhile.
_ATTEMPTS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """One write; *text* says what it does."""

    text: str
    do: Callable[[], None]


class Takeover:
    """The takeover of instances on one compute node.

    :param host: a connection to libvirt that may write
    """

    def __init__(
        self,
        context: nova_context.RequestContext,
        client: Any,
        node: objects.ComputeNode,
        host: libvirt_host.Host,
        report: Shadow,
    ) -> None:
        self._context = context
        self._client = client
        self._node = node
        self._host = host
        self._groups = report.groups
        self._mediating = report.mediating
        cards = (card.gpu for card in report.cards)
        self._products = products_of(report)
        self._functions = frozenset(function for card in cards for function in card.functions)
        own = {leaving.instance.uuid: leaving.instance.slots for leaving in report.leavings}
        for holding in report.holdings:
            own.pop(holding.instance.uuid, None)
        self._own = own

    def begun(self) -> Iterator[Iterator[Write]]:
        """Yield by instance the steps that take back what a way back, killed, has begun."""
        for uuid, slots in self._own.items():
            undefine = functools.partial(definitions.remove, self._host, uuid, slots)
            # nova-gpu's driver has made the request agree if it started since.
            is_begun = definitions.are_there(self._host, uuid, slots)
            yield restoring(self._context, uuid, self._node.host, undefine, is_begun=is_begun)

    def ended(self) -> Iterator[Write]:
        """Yield the step that ends the providers of vGPUs that stock Nova has left.

        Without an instance nothing else does. It is the time: Nova's tracker fails on a provider
        that is removed while nova-compute runs.
        """
        if self._mediating:
            yield Write("remove stock Nova's providers that nothing uses", self.clear)

    def _unused(self, tree: provider_tree.ProviderTree) -> Iterator[str]:
        for provider in tree.get_provider_uuids(self._node.uuid):
            name = tree.data(provider).name
            function = names.parse_stock_provider_name(self._node.hypervisor_hostname, name)
            if function in self._mediating and not discovery.is_divided_by_nova(function):
                answer = self._client.get_allocations_for_resource_provider(self._context, provider)
                if not answer.allocations:
                    yield provider

    def clear(self) -> None:
        """Remove stock Nova's providers of vGPUs of which nothing has anything."""
        tree = tree_of(self._context, self._client, self._node)
        for provider in list(self._unused(tree)):
            tree.remove(provider)
        self._client.update_from_provider_tree(self._context, tree)

    def steps(self, holding: StockHolding) -> Iterator[Write]:
        """Yield the steps of one instance's takeover, in their order.

        Each raises NotTakenOver, having changed nothing, if the instance has become busy, and
        PlacementFailed if Placement refuses.

        :param holding: the instance, which has no obstacle
        """
        uuid = holding.instance.uuid
        if holding.former not in (None, holding.instance.former):
            yield Write(f"{uuid}: keep its former words", lambda: self.keep(holding))
        if holding.instance.is_shelved:
            yield Write(f"{uuid}: change its request spec", lambda: self.respecify(holding))
            yield Write(f"{uuid}: change its flavor", lambda: self.record(holding))
            return
        gpus = ", ".join(map(str, holding.devices))
        yield Write(f"{uuid}: count {gpus} for nova-gpu in Placement", lambda: self.count(holding))
        yield Write(f"{uuid}: change its request spec", lambda: self.respecify(holding))
        if StockDelivery.MEDIATED in holding.deliveries:
            yield Write(
                f"{uuid}: let libvirt define none of {gpus}", lambda: self.undefine(holding)
            )
        yield Write(f"{uuid}: change its flavor and its records", lambda: self.record(holding))
        if StockDelivery.ALIAS in holding.deliveries:
            yield Write(
                f"{uuid}: remove stock Nova's records of {gpus}", lambda: self.forget(holding)
            )

    def keep(self, holding: StockHolding) -> None:
        """Keep with the instance what it has by stock Nova, by which a way back restores it."""
        keep(self._settled(holding), holding.former)
        self._settled(holding)

    def count(self, holding: StockHolding) -> None:
        """Count the instance's GPUs for their group in Placement, no longer for stock Nova."""
        settled(self._context, holding.instance.uuid, self._node.host)
        records.request_spec(self._context, holding.instance.uuid)
        recount(
            self._context,
            self._client,
            self._node,
            lambda tree: self._read(holding.instance.uuid, tree),
            lambda tree, allocations: self._recounted(holding, tree, allocations),
        )

    def _read(
        self, uuid: str, tree: provider_tree.ProviderTree
    ) -> tuple[AllocationsByConsumer, AllocationsByConsumer]:
        """Return the instance's allocation, and with it what others have of the host's GPUs.

        There is a request for each provider of GPUs. Nova's own method has one for each consumer.
        """
        own = {uuid: self._client.get_allocs_for_consumer(self._context, uuid)}
        every: AllocationsByConsumer = {}
        for provider in tree.get_provider_uuids(self._node.uuid):
            name, node = tree.data(provider).name, self._node.hypervisor_hostname
            if not (providers.function_of(name) or names.parse_provider_name(node, name)):
                continue
            answer = self._client.get_allocations_for_resource_provider(self._context, provider)
            for consumer, item in answer.allocations.items():
                every.setdefault(consumer, {"allocations": {}})["allocations"][provider] = item
        return own, every | own

    def _recounted(
        self, holding: StockHolding, tree: provider_tree.ProviderTree, allocations: dict[str, Any]
    ) -> bool:
        """Change *tree* and *allocations* for the instance; return whether something changed."""
        uuid = holding.instance.uuid
        own = allocations[uuid]["allocations"]
        if not own:
            reason = "Placement counts nothing for it on this host"
            remedy = "see nova-manage placement heal_allocations"
            raise NotTakenOver(uuid, reason, remedy)
        before = copy.deepcopy(own)
        # Nova counts a virtual function on the provider of its card, a mediated device on that of
        # the function where it was made.
        counted_at = {*holding.functions, *(slot.parent for slot in holding.slots)}
        counted_at |= {*holding.slots.values()}
        for provider in tree.get_provider_uuids(self._node.uuid):
            function = providers.function_of(tree.data(provider).name)
            # A resize of stock Nova takes any card, and Placement may go on to count another one
            # (``ResourceTracker._move_claim``).
            if function in counted_at | self._functions:
                own.pop(provider, None)
            if function in counted_at | self._mediating:
                if any(provider in item["allocations"] for item in allocations.values()):
                    _reserve_rest(tree, allocations, provider)
                else:
                    tree.remove(provider)
        for group, amount in self._amounts(holding).items():
            provider = self._provider(group, tree)
            own[provider] = {"resources": {group.resource_class: amount}}
            count = usage(allocations, provider, group.resource_class)
            total = max(group.total, count)
            counts = inventory.inventory(total, total - count, group.resource_class)
            # The class of the model stays: other instances may count by it.
            tree.update_inventory(provider, tree.data(provider).inventory | counts)
        return bool(before != own)

    def _amounts(self, holding: StockHolding) -> dict[ShadowGroup, int]:
        return collections.Counter(self._group_of(holding, dev) for dev in holding.devices)

    def _group_of(self, holding: StockHolding, dev: Device) -> ShadowGroup:
        """Return the group of one of the instance's GPUs."""
        card = holding.cards_by_device[dev]
        for group in self._groups:
            if card in group.cards and group.vgpu_type == device.vgpu_type(dev):
                return group
        reason = f"nova-gpu would not offer {dev}"
        raise NotTakenOver(holding.instance.uuid, reason, "see nova-gpu shadow")

    def _provider(self, group: ShadowGroup, tree: provider_tree.ProviderTree) -> str:
        if tree.exists(group.provider):
            return str(tree.data(group.provider).uuid)
        return str(tree.new_child(group.provider, self._node.uuid))

    def respecify(self, holding: StockHolding) -> None:
        """Write the flavor and the requests that it will have into the instance's request spec.

        This comes before its own records, by which a second run finds it.
        """
        instance = self._settled(holding)
        flavor = renamed(instance.flavor, holding.set, holding.unset)
        requests = other_requests(instance, holding.aliases)
        respecify(self._context, instance.uuid, flavor, requests)

    def undefine(self, holding: StockHolding) -> None:
        """Remove libvirt's definitions of the instance's mediated devices."""
        settled(self._context, holding.instance.uuid, self._node.host)
        definitions.remove(self._host, holding.instance.uuid, holding.slots.keys())

    def record(self, holding: StockHolding) -> None:
        """Write the instance's GPUs, its flavor and its requests, in one write of the database."""
        instance = self._settled(holding)
        tree = tree_of(self._context, self._client, self._node)
        own = [
            pool.resource(tree.data(self._group_of(holding, dev).provider).uuid, dev)
            for dev in holding.devices
        ]
        others = [item for item in instance.resources or () if item not in own]
        flavor = renamed(instance.flavor, holding.set, holding.unset)
        requests = other_requests(instance, holding.aliases)
        former = stock_records.devices(instance.resources)
        write(self._context, instance, flavor, requests, [*others, *own])
        news = [dev for dev in holding.devices if dev not in former]
        notify(EventType.CLAIM, instance, news, self._products)

    def _settled(self, holding: StockHolding) -> objects.Instance:
        host = None if holding.instance.is_shelved else self._node.host
        return settled(self._context, holding.instance.uuid, host)

    def forget(self, holding: StockHolding) -> None:
        """Remove Nova's rows of the instance's PCI functions, as its own tracker does."""
        own = set(map(str, holding.functions))
        stock_records.remove(
            self._context, self._node, holding.instance.uuid, lambda row: row.address in own
        )


def recount(
    context: nova_context.RequestContext,
    client: Any,
    node: objects.ComputeNode,
    read: Callable[
        [provider_tree.ProviderTree], tuple[AllocationsByConsumer, AllocationsByConsumer]
    ],
    change: Callable[[provider_tree.ProviderTree, AllocationsByConsumer], bool],
) -> None:
    """Change the node's providers and allocations from them in one request to Placement.

    :param read: return the allocations that are written, and these among all others, by consumer
    :param change: change the tree and the allocations; return whether something has changed
    :raises PlacementFailed: if Placement refuses, or others write to the providers at each attempt
    """
    for _ in range(_ATTEMPTS):
        tree = tree_of(context, client, node)
        written, allocations = read(tree)
        if not change(tree, allocations):
            return
        try:
            client.update_from_provider_tree(context, tree, allocations=written)
        except (
            nova_exception.PlacementReshapeConflict,
            nova_exception.ResourceProviderUpdateConflict,
        ):
            client.clear_provider_cache()
        except nova_exception.ReshapeFailed as error:
            raise exception.PlacementFailed("/reshaper", str(error), verb="POST") from error
        else:
            return
    reason = f"other processes changed the providers during each of {_ATTEMPTS} attempts"
    raise exception.PlacementFailed("/reshaper", reason, verb="POST")


def _reserve_rest(
    tree: provider_tree.ProviderTree, allocations: Mapping[str, Any], provider: str
) -> None:
    """Let Placement give nothing more of a provider that others still have something of."""
    counts = copy.deepcopy(tree.data(provider).inventory)
    for resource_class, count in counts.items():
        rest = count["total"] - usage(allocations, provider, resource_class)
        count["reserved"] = max(rest, 0)
    tree.update_inventory(provider, counts)


def products_of(report: Shadow) -> dict[PciAddress, Product]:
    """Return the product of each card of the host."""
    return {card.gpu.address: card.gpu.product for card in report.cards}


def notify(
    event_type: EventType,
    instance: objects.Instance,
    devices: Iterable[Device],
    products: Mapping[PciAddress, Product],
) -> None:
    """Send that the instance has got *devices* by nova-gpu, or has them no longer."""
    cards = {dev: device.card_of(device.function(dev), products) for dev in devices}
    named = {dev: products[card] for dev, card in cards.items() if card is not None}
    for event in notifications.of_devices(event_type, named, instance.host):
        notifications.emit(event.of(instance.uuid, instance.project_id))


def usage(allocations: Mapping[str, Any], provider: str, resource_class: str) -> int:
    """Return how much of a provider's resource the *allocations* of all consumers have."""
    of_provider = (item["allocations"].get(provider, {}) for item in allocations.values())
    return sum(item.get("resources", {}).get(resource_class, 0) for item in of_provider)


def tree_of(
    context: nova_context.RequestContext, client: Any, node: objects.ComputeNode
) -> provider_tree.ProviderTree:
    """Return the node's resource providers."""
    return client.get_provider_tree_and_ensure_root(
        context, node.uuid, name=node.hypervisor_hostname
    )


def settled(context: nova_context.RequestContext, uuid: str, host: str | None) -> objects.Instance:
    """Return the instance as it is now.

    :param host: the one that it is to be on, ``None`` for a shelved instance
    """
    try:
        instance = objects.Instance.get_by_uuid(context, uuid, expected_attrs=records.ATTRIBUTES)
    except nova_exception.InstanceNotFound as error:
        raise NotTakenOver(uuid, "it was deleted", "nothing is to be done") from error
    if instance.host != host:
        raise NotTakenOver(uuid, f"it is on the host {instance.host} now", "run this command again")
    remedy = "run this command again when that has ended"
    if instance.task_state is not None:
        raise NotTakenOver(uuid, f"it has the task {instance.task_state}", remedy)
    moves = objects.MigrationList.get_in_progress_by_instance(context, uuid)
    if moves:
        raise NotTakenOver(uuid, f"a migration of it is {moves[0].status}", remedy)
    return instance


def write(
    context: nova_context.RequestContext,
    instance: objects.Instance,
    flavor: objects.Flavor,
    requests: objects.InstancePCIRequests,
    resources: Iterable[objects.Resource],
) -> None:
    """Write the instance's flavor, requests and resources in one write of the database.

    :raises NotTakenOver: if it became busy in the same moment; then it has its records back
    """
    # Whatever else can fail has been done. This cannot depend on the task, which tells that a user
    # asks for something: Instance.save writes these columns in a transaction of their own, before
    # the one that compares expected_task_state. So the task is read again, and what was written is
    # undone, as the user's request has most often loaded the records of before. One that has loaded
    # those in between lets nova-compute write their flavor again, and the next run takes that.
    before = instance.flavor, instance.pci_requests, instance.resources
    own = list(resources)
    changed = flavor, requests, objects.ResourceList(objects=own) if own else None
    instance.flavor, instance.pci_requests, instance.resources = changed
    instance.save()
    try:
        settled(context, instance.uuid, instance.host)
    except NotTakenOver:
        instance.flavor, instance.pci_requests, instance.resources = before
        instance.save()
        raise


def keep(instance: objects.Instance, former: Former | None) -> None:
    """Keep *former* with the instance, and nothing of an earlier takeover."""
    items = former.to_metadata() if former else {}
    if metadata_text.store(names.FORMER, items, instance.system_metadata):
        instance.save()


def respecify(
    context: nova_context.RequestContext,
    uuid: str,
    flavor: objects.Flavor,
    requests: objects.InstancePCIRequests,
) -> None:
    """Write a flavor and requests into the request by which Nova schedules the instance."""
    if (spec := records.request_spec(context, uuid)) is not None:
        stock_records.respecify(spec, flavor, requests)


def restoring(
    context: nova_context.RequestContext,
    uuid: str,
    host: str,
    define: Callable[[], None],
    *,
    is_begun: bool = False,
) -> Iterator[Write]:
    """Yield the step that takes back what the command the other way has begun for an instance.

    That command changes the request spec before all else of an instance that would be missed, and
    the instance's own records last.

    :param define: make libvirt's definitions of its mediated devices what they were
    :param is_begun: whether these tell that it has begun
    """
    spec = records.request_spec(context, uuid)
    try:
        flavor = objects.Instance.get_by_uuid(context, uuid, expected_attrs=["flavor"]).flavor
    except nova_exception.InstanceNotFound:
        return
    # The flavor of a resize has another id.
    if (
        spec is None
        or spec.flavor.flavorid != flavor.flavorid
        or (spec.flavor.extra_specs == flavor.extra_specs and not is_begun)
    ):
        return

    def restore() -> None:
        instance = settled(context, uuid, host)
        define()
        respecify(context, uuid, instance.flavor, requests_of(instance))

    yield Write(f"{uuid}: take back what was begun the other way", restore)


def renamed(
    flavor: objects.Flavor, properties: Mapping[str, str], removed: Collection[str]
) -> objects.Flavor:
    """Return a copy of *flavor* with *properties*, and without those *removed*."""
    changed = flavor.obj_clone()
    specs: Mapping[str, str] = {**flavor.extra_specs, **properties}
    changed.extra_specs = {name: specs[name] for name in specs if name not in removed}
    return changed


def requests_of(instance: objects.Instance) -> Any:
    """Return a copy of the instance's requests; stock Nova writes none for mediated devices."""
    if instance.pci_requests is None:
        return objects.InstancePCIRequests(instance_uuid=instance.uuid, requests=[])
    return instance.pci_requests.obj_clone()


def other_requests(instance: objects.Instance, aliases: Collection[str]) -> Any:
    """Return a copy of the instance's requests without those of *aliases*."""
    requests = requests_of(instance)
    requests.requests = [item for item in requests.requests if item.alias_name not in aliases]
    return requests
