# SPDX-License-Identifier: Apache-2.0
"""The way back: instances with GPUs of nova-gpu have them by stock Nova.

Whole cards come by an alias, mediated devices by ``[devices]enabled_mdev_types``.

The guests stay as they are, and nova-compute does not run, as in
:mod:`nova_gpu_migrate.virt.adoption`. All instances of a host are given back together, because
stock Nova takes every card in ``[pci]device_spec`` that it has no record of for free. So Nova's
records of the PCI functions come first, for all instances. Then the instances' request specs and
their own records, with the requests of these functions, are changed, and last what stock Nova would
give besides and what Placement counts.
Killed between, it goes on from there; nova-compute with nova-gpu's driver may be started in
between, which removes the records of functions that are still its own.
"""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import provider_tree
from nova.objects import fields
from nova.pci import request as pci_request
from nova.pci import whitelist
from nova.virt import hardware
from nova.virt.libvirt import host as libvirt_host

from nova_gpu.conf import CONF
from nova_gpu.core import names
from nova_gpu.core.model import PciAddress
from nova_gpu.core.placement import inventory
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import sriov
from nova_gpu.notifications import EventType
from nova_gpu.virt.delivery.pci_aliases import DeviceSpec
from nova_gpu.virt.usage import stock_records
from nova_gpu_migrate.core import adoption_plan
from nova_gpu_migrate.core.former import AliasRequest
from nova_gpu_migrate.core.stock_holding import NotTakenOver, StockDelivery, StockReturn, Stranger
from nova_gpu_migrate.virt import adoption, aliases, definitions, providers, records
from nova_gpu_migrate.virt.adoption import AllocationsByConsumer, Write
from nova_gpu_migrate.virt.shadow import Shadow


class Leaving:
    """The way back of all instances on one compute node.

    :param host: a connection to libvirt that may write
    """

    def __init__(
        self,
        context: nova_context.RequestContext,
        client: Any,
        node: objects.ComputeNode,
        host: libvirt_host.Host,
        report: Shadow,
        roots: Roots,
    ) -> None:
        self._context = context
        self._client = client
        self._node = node
        self._host = host
        self._holdings = report.holdings
        self._mediated = report.mediated
        self._roots = roots
        self._products = adoption.products_of(report)

    def steps(self, leavings: Iterable[StockReturn]) -> Iterator[Write]:
        """Yield all steps in their order; each raises what those of a takeover raise.

        :param leavings: all instances with GPUs of nova-gpu on the host, without obstacles
        """
        everybody = list(leavings)
        leaving_too = {leaving.instance.uuid for leaving in everybody}
        for holding in self._holdings:
            if (own := holding.instance.uuid) not in leaving_too:
                slots = holding.slots if holding.deliveries == (StockDelivery.MEDIATED,) else ()
                define = functools.partial(definitions.add, self._host, own, slots)
                yield from adoption.restoring(self._context, own, self._node.host, define)
                if holding.instance.former:
                    yield self._forgetting(own, self._node.host)
        for shelved in records.shelved(self._context):
            record = shelved.former
            # A run that was killed may have written the flavor, and not that.
            if record and not record.is_before(shelved.flavor, shelved.extra_specs):
                yield self._forgetting(shelved.uuid, None)
        for leaving in everybody:
            yield from self._first(leaving)
        for leaving in everybody:
            yield from self._then(leaving)
        yield Write("withhold the cards of virtual functions, and those of cards", self.withhold)
        yield Write("count no card for nova-gpu in Placement", self.uncount)

    def _first(self, leaving: StockReturn) -> Iterator[Write]:
        own = leaving.instance.uuid
        if leaving.functions:
            yield Write(f"{own}: add stock Nova's records", lambda: self.remember(leaving))

    def _then(self, leaving: StockReturn) -> Iterator[Write]:
        own = leaving.instance.uuid
        if leaving.instance.is_shelved:
            yield Write(f"{own}: change its request spec and its flavor", lambda: self.ask(leaving))
            return
        yield Write(f"{own}: change its request spec", lambda: self.respecify(leaving))
        if leaving.mediated:
            yield Write(
                f"{own}: let libvirt define its mediated devices", lambda: self.define(leaving)
            )
        yield Write(f"{own}: change its flavor and its records", lambda: self.record(leaving))

    def ask(self, leaving: StockReturn) -> None:
        """Let a shelved instance ask by its aliases, which takes no device."""
        instance = adoption.settled(self._context, leaving.instance.uuid, None)
        flavor = adoption.renamed(instance.flavor, leaving.set, leaving.unset)
        requests = adoption.requests_of(instance)
        counts = adoption_plan.alias_counts(flavor.extra_specs)
        ports = [request for request in requests.requests if request.alias_name is None]
        requests.requests = [*ports, *_requests(instance, counts, leaving.requests)]
        adoption.respecify(self._context, instance.uuid, flavor, requests)
        adoption.write(self._context, instance, flavor, requests, ())
        adoption.keep(instance, None)

    def remember(self, leaving: StockReturn) -> None:
        """Add Nova's row of each card and function, as allocated to the instance."""
        instance = adoption.settled(self._context, leaving.instance.uuid, self._node.host)
        records.request_spec(self._context, instance.uuid)
        rows = objects.PciDeviceList.get_by_compute_node(self._context, self._node.id)
        by_address = {row.address: row for row in rows}
        for function, alias in leaving.functions.items():
            row = by_address.get(str(function))
            if row is None:
                row = objects.PciDevice.create(self._context, self._facts(function))
            elif row.instance_uuid not in (None, instance.uuid):
                raise NotTakenOver(
                    instance.uuid,
                    f"Nova counts {function} for the instance {row.instance_uuid} as well",
                    "see nova-gpu shadow, and take that instance over first (nova-gpu adopt)",
                )
            row.status = fields.PciDeviceStatus.ALLOCATED
            row.instance_uuid, row.request_id = instance.uuid, _request_id(instance.uuid, alias)
            row.save()

    def withhold(self) -> None:
        """Mark as unavailable what the functions of instances exclude, as Nova's tracker does.

        That is the card of a virtual function, and the virtual functions of a card. Nova's records
        are read, as those of instances that an earlier run has given back are among them.
        """
        rows = objects.PciDeviceList.get_by_compute_node(self._context, self._node.id)
        by_address = {row.address: row for row in rows}
        spec = DeviceSpec(CONF.pci.device_spec)
        for function in sorted({item for row in rows for item in self._excluded(row)}):
            row = by_address.get(str(function))
            if row is None and spec.obstacle([function], self._roots):
                row = objects.PciDevice.create(self._context, self._facts(function))
            if row is not None and row.status == fields.PciDeviceStatus.AVAILABLE:
                row.status = fields.PciDeviceStatus.UNAVAILABLE
                row.save()

    def _excluded(self, row: objects.PciDevice) -> Collection[PciAddress]:
        """Return the functions that Nova gives to no instance while one has that of *row*."""
        if row.status not in stock_records.TAKEN:
            return ()
        if row.dev_type == fields.PciDeviceType.SRIOV_VF and row.parent_addr:
            return (PciAddress.parse(row.parent_addr),)
        if row.dev_type == fields.PciDeviceType.SRIOV_PF:
            device = sysfs.device(PciAddress.parse(row.address), self._roots)
            return sriov.virtual_functions(device).values()
        return ()

    def _facts(self, function: PciAddress) -> dict[str, Any]:
        """Return what libvirt tells Nova of a card or function (``Host._get_pcidev_info``).

        ``[pci]device_spec`` adds some, such as ``managed``; Nova before 2025.1 knows none.
        """
        device = sysfs.device(function, self._roots)
        vendor_id, product_id = sysfs.ids(device)
        card = sysfs.link(device, "physfn")
        facts = {
            "compute_node_id": self._node.id,
            "address": str(function),
            "dev_id": definitions.node_device(function),
            "vendor_id": vendor_id,
            "product_id": product_id,
            "dev_type": aliases.device_type_of(function, self._roots),
            "label": f"label_{vendor_id}_{product_id}",
            "numa_node": sysfs.numa_node(device),
            **({"parent_addr": card} if card else {}),
        }
        spec = whitelist.Whitelist(CONF.pci.device_spec).device_assignable(facts)
        if hasattr(spec, "enhanced_pci_device_with_spec_tags"):
            spec.enhanced_pci_device_with_spec_tags(facts)
        return facts

    def define(self, leaving: StockReturn) -> None:
        """Let libvirt define the instance's mediated devices, as those of stock Nova."""
        adoption.settled(self._context, leaving.instance.uuid, self._node.host)
        definitions.add(self._host, leaving.instance.uuid, leaving.mediated)

    def respecify(self, leaving: StockReturn) -> None:
        """Write the flavor and the requests that it will have into the instance's request spec.

        This comes before its own records, by which a second run finds it.
        """
        instance = adoption.settled(self._context, leaving.instance.uuid, self._node.host)
        flavor = adoption.renamed(instance.flavor, leaving.set, leaving.unset)
        requests = _by_alias(instance, leaving)
        adoption.respecify(self._context, instance.uuid, flavor, requests)

    def record(self, leaving: StockReturn) -> None:
        """Write the instance's flavor, its requests, and that it has no card by nova-gpu."""
        instance = adoption.settled(self._context, leaving.instance.uuid, self._node.host)
        own = set(map(str, (*leaving.instance.counted, *leaving.instance.slots)))
        others = [item for item in instance.resources or () if item.identifier not in own]
        flavor = adoption.renamed(instance.flavor, leaving.set, leaving.unset)
        requests = _by_alias(instance, leaving)
        had = stock_records.devices(instance.resources)
        adoption.write(self._context, instance, flavor, requests, others)
        gone = [dev for dev in had if str(dev) in own]
        adoption.notify(EventType.RELEASE, instance, gone, self._products)
        adoption.keep(instance, None)

    def _forgetting(self, instance_uuid: str, host: str | None) -> Write:
        """Return the step that forgets what a takeover has kept of one that asks stock Nova."""

        def forget() -> None:
            adoption.keep(adoption.settled(self._context, instance_uuid, host), None)

        return Write(f"{instance_uuid}: forget what was kept of it", forget)

    def uncount(self) -> None:
        """Remove nova-gpu's groups from Placement; count mediated devices for stock Nova."""

        def read(
            _: provider_tree.ProviderTree,
        ) -> tuple[AllocationsByConsumer, AllocationsByConsumer]:
            node = self._node.hypervisor_hostname
            every = self._client.get_allocations_for_provider_tree(self._context, node)
            return every, every

        adoption.recount(self._context, self._client, self._node, read, self._uncounted)

    def _uncounted(self, tree: provider_tree.ProviderTree, allocations: dict[str, Any]) -> bool:
        name = self._node.hypervisor_hostname
        groups = [
            provider
            for provider in tree.get_provider_uuids(self._node.uuid)
            if names.parse_provider_name(name, tree.data(provider).name) is not None
        ]
        pairs = set()
        for group in groups:
            for consumer, item in allocations.items():
                if item["allocations"].pop(group, None) is None:
                    continue
                self._check_here(consumer)
                for (parent, resource_class), count in self._mediated.get(consumer, {}).items():
                    provider = self._provider(parent, tree)
                    item["allocations"][provider] = {"resources": {resource_class: count}}
                    pairs.add((provider, resource_class))
            tree.remove(group)
        for provider, resource_class in pairs:
            usage = adoption.usage(allocations, provider, resource_class)
            total = tree.data(provider).inventory.get(resource_class, {}).get("total", 0)
            counts = inventory.inventory(max(total, usage), 0, resource_class)
            tree.update_inventory(provider, dict(counts))
        return bool(groups)

    def _provider(self, parent: PciAddress, tree: provider_tree.ProviderTree) -> str:
        """Return the uuid of stock Nova's provider of mediated devices at a function."""
        name = providers.name_of(self._node.hypervisor_hostname, parent)
        if not tree.exists(name):
            tree.new_child(name, self._node.uuid)
        return str(tree.data(name).uuid)

    def _check_here(self, consumer: str) -> None:
        """Check that a consumer of GPUs is an instance of this host; others have no step here."""
        with contextlib.suppress(nova_exception.InstanceNotFound):
            if objects.Instance.get_by_uuid(self._context, consumer).host == self._node.host:
                return
        raise Stranger(consumer)


def _request_id(instance_uuid: str, alias: str | None) -> str:
    """Return the id of the instance's request of an alias, the same in each run."""
    return str(uuid.uuid5(uuid.UUID(instance_uuid), str(alias)))


def _requests(
    instance: objects.Instance, counts: Mapping[str, int], former: Mapping[str, AliasRequest]
) -> list[Any]:
    """Return requests of so many functions by each alias.

    :param former: what the instance asked for by an alias before; by others as ``[pci]alias`` says
    """
    requests = [
        objects.InstancePCIRequest(
            count=counts[alias],
            spec=[dict(spec) for spec in request.specs],
            alias_name=alias,
            numa_policy=request.numa_policy,
        )
        for alias, request in former.items()
        if alias in counts
    ]
    words = ",".join(f"{alias}:{counts[alias]}" for alias in counts if alias not in former)
    if words:
        flavor = objects.Flavor(extra_specs={names.PCI_ALIAS: words})
        policy = hardware.get_pci_numa_policy_constraint(instance.flavor, instance.image_meta)
        with aliases.accepted():
            requests += pci_request.get_pci_requests_from_flavor(flavor, policy).requests
    for request in requests:
        request.request_id = _request_id(instance.uuid, request.alias_name)
    order = list(counts)  # that of the flavor, as Nova has them
    return sorted(requests, key=lambda request: order.index(request.alias_name))


def _by_alias(instance: objects.Instance, leaving: StockReturn) -> Any:
    """Return a copy of the instance's requests; stock Nova gives by aliases what nova-gpu gave."""
    added = _requests(instance, leaving.counts, leaving.requests)
    own = {request.request_id for request in added}
    requests = adoption.requests_of(instance)
    others = [request for request in requests.requests if request.request_id not in own]
    requests.requests = [*others, *added]
    return requests
