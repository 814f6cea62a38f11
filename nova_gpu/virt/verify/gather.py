# SPDX-License-Identifier: Apache-2.0
"""Reader of the four sources about a host's GPUs: sysfs, libvirt, Nova's database and Placement.

As in nova-compute, the database is read through the conductor, and Placement with Nova's client.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any, TypeVar

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import vm_states
from nova.virt import hardware
from nova.virt.libvirt import host as libvirt_host

from nova_gpu.conf import CONF
from nova_gpu.core import boundary, device, exception, names, unavailability
from nova_gpu.core.device import Device
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.model import GPU, DeliveryMode, GroupKey, PciAddress
from nova_gpu.core.topology import affinity
from nova_gpu.core.topology.affinity import Policy
from nova_gpu.core.unavailability import Reasons
from nova_gpu.core.vgpu import vgpu_group
from nova_gpu.core.vgpu.vgpu import UNKNOWN, DividedCard, Slot
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.mig import mig_layout
from nova_gpu.host.vfio import passthrough
from nova_gpu.virt.delivery.made_vgpus import MadeVGPUs
from nova_gpu.virt.inventory import card_groups, placement_client
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.usage import allocations, domains, records
from nova_gpu.virt.usage.allocations import Allocations
from nova_gpu.virt.usage.domains import DomainDevices
from nova_gpu.virt.usage.records import Records
from nova_gpu.virt.verify import abandoned_moves
from nova_gpu.virt.verify.sources import Consumer, GroupProvider, HostState, Wanted

_T = TypeVar("_T")
# The options that tell where each source is, for messages
_OPTIONS = {
    "sysfs": "[gpu]sysfs_root",
    "libvirt": "[libvirt]virt_type and connection_uri",
    "Nova's database": "nova-conductor, which is asked for it, and [DEFAULT]transport_url",
    "Placement": "the options of [placement]",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """The objects by which the four sources are read.

    ``placement``: Nova's report client. ``unavailable``: return those of the cards that guests
    cannot get, with the reasons. ``ask``: call a function that reads one source, and return its
    answer; it may stop waiting, and raise any exception.
    """

    discovery: Discovery
    libvirt: libvirt_host.Host
    placement: Any
    unavailable: Callable[[Iterable[GPU]], Mapping[PciAddress, Reasons]]
    ask: Callable[[Callable[[], Any]], Any] = lambda read: read()


class Questions:
    """The questions of one comparison, and those that were not answered."""

    def __init__(self, within: Callable[[Callable[[], Any]], Any]) -> None:
        self._within = within
        self._failures: dict[str, None] = {}

    def __call__(self, who: str, read: Callable[..., _T], *arguments: Any) -> _T | None:
        """Return the answer of *read*, ``None`` if it fails.

        :param who: the source that is asked, a key of the options' table
        """
        try:
            with boundary.crossed():
                answer: _T = self._within(lambda: read(*arguments))
        except boundary.Failure as error:
            self._failures[f"{who}: {error.first_line}; see {_OPTIONS[who]}"] = None
            return None
        return answer

    @property
    def unread(self) -> tuple[str, ...]:
        return tuple(self._failures)


@dataclasses.dataclass(frozen=True, slots=True)
class HostCards:
    """The cards of a host, by sysfs and the host's drivers.

    ``whole``: the cards that guests get whole. ``unavailable``: why guests cannot get some of them.
    ``shared``: the cards that guests get vGPUs of, and ``parts`` their vGPU types and functions.
    ``unread``: those in ``whole`` that have MIG instances which could not be read.
    """

    whole: Mapping[PciAddress, GPU]
    unavailable: Mapping[PciAddress, Reasons]
    parts: Mapping[PciAddress, DividedCard]
    shared: tuple[GPU, ...]
    unread: frozenset[PciAddress]

    @property
    def functions(self) -> frozenset[PciAddress]:
        """The PCI functions at which guests get vGPUs, or may get some."""
        known = (address for card in self.parts.values() for address in card.parents)
        return frozenset(known) | self.unread


_NO_CARDS = HostCards({}, {}, {}, (), frozenset())


def gather(sources: Sources) -> HostState:
    """Read the four sources, and return what they have of the host's GPUs; raise nothing."""
    ask = Questions(sources.ask)
    context = nova_context.get_admin_context()
    discovery, client = sources.discovery, sources.placement
    guests = nodename = had = wanted = providers = allocated = holders = made = None
    free: Mapping[GroupKey, int] = {}
    answer = ask("sysfs", read_cards, discovery, sources.unavailable)
    cards = answer or _NO_CARDS
    if answer is not None:
        guests = ask("libvirt", _guests, discovery, sources.libvirt, cards)
        if guests is not None:
            nodename = ask("libvirt", sources.libvirt.get_hostname)
    if nodename is None:
        nodename = ask("Nova's database", _nodename, context)
    if nodename is not None:
        with_gpus = [uuid for uuid, guest in (guests or {}).items() if guest.every]
        had = ask("Nova's database", records.read, context, CONF.host, nodename, with_gpus)
        if had is not None:
            wanted = ask("Nova's database", _wanted, context, had)
        mode = discovery.delivery.mode
        providers = ask("Placement", read_providers, client, context, nodename, mode, cards)
        if providers is not None:  # else Placement does not answer
            read, last = had or Records({}), Allocations()
            allocated = ask("Placement", allocations.read, client, nodename, read, last)
    if had is not None and allocated is not None:
        # Last: consumers that were created since the database was read are found.
        groups = (allocated.by_provider.get(group, {}) for group in providers or ())
        consumers = {consumer for group in groups for consumer in group}
        holders = ask("Nova's database", _holders, consumers - had.counted.keys())
    if guests is not None and had is not None:
        owners = {uuid: guest.every for uuid, guest in guests.items()}
        for uuid in had.counted:
            owners[uuid] = owners.get(uuid, frozenset()) | had.devices(uuid)
        made = ask("sysfs", made_vgpus, discovery, cards.parts, owners)
        if made is not None:
            exist = frozenset[Slot]().union(*made.values())
            free = _free(cards, exist.union(*owners.values()), exist)
    nodes = {address: gpu.numa_node for address, gpu in cards.whole.items()}
    return HostState(
        cards=None if answer is None else frozenset(cards.whole),
        unfit=_unfit(discovery, cards),
        guests=guests,
        records=None if wanted is None else had,
        wanted=wanted or {},
        providers=None if allocated is None else providers,
        allocations=allocated or Allocations(),
        holders=holders or {},
        unread=ask.unread,
        functions=cards.functions,
        made=made,
        vgpus_free={names.provider_name(nodename or "", key): free[key] for key in free},
        nodes={address: node for address, node in nodes.items() if node is not None},
    )


def read_cards(
    discovery: Discovery, unavailable: Callable[[Iterable[GPU]], Mapping[PciAddress, Reasons]]
) -> HostCards:
    """Return the cards that the host has now.

    :raises DiscoveryFailed: if sysfs cannot be read
    """
    gpus = discovery.find()
    parts, others = discovery.in_parts(gpus)
    whole = {gpu.address: gpu for gpu in gpus if gpu.address not in parts}
    unread: frozenset[PciAddress] = frozenset()
    if discovery.delivery.shares_driver:
        mig = (a for a, gpu in whole.items() if mig_layout.is_divided(gpu, discovery.roots))
        unread = frozenset(others).intersection(mig)
    reasons = unavailability.merge(
        {a: others[a] for a in unread},
        unavailable(whole.values()),
        {a: unavailability.to_new(others[a]) for a in others.keys() - unread},
    )
    shared = tuple(gpu for gpu in gpus if gpu.address in parts)
    own = {address: reasons[address] for address in whole if reasons.get(address)}
    return HostCards(whole, own, parts, shared, unread)


def _unfit(discovery: Discovery, cards: HostCards) -> dict[Device, str]:
    """Return which whole cards no guest can use, or have the wrong driver, with the reason."""
    unfit: dict[Device, str] = {}
    for address, gpu in cards.whole.items():
        if not (discovery.delivery.shares_driver or passthrough.is_with_vfio(gpu, discovery.roots)):
            driver = gpu.driver or "no driver"
            unfit[address] = f"it is bound to {driver} and not to vfio-pci; see nova-gpu host check"
        elif reason := unavailability.for_all(cards.unavailable.get(address, ())):
            unfit[address] = str(reason)
    return unfit


def _guests(
    discovery: Discovery, libvirt: libvirt_host.Host, cards: HostCards
) -> dict[str, DomainDevices]:
    """Return the devices of the host that each domain names or reaches, by the domain's uuid."""
    # The nodes of a guest's part lead to the whole card as well. While the card's division is
    # unknown, that must not count as the guest's.
    whole = (gpu for address, gpu in cards.whole.items() if address not in cards.unread)
    made = MadeVGPUs(discovery.vgpus).by_instance()
    return domains.look(
        libvirt, domains.parts(whole, discovery.roots, cards.parts.values(), vgpus=made)
    )


def _nodename(context: nova_context.RequestContext) -> str:
    """Return the name of the host's compute node from the database, if libvirt does not answer."""
    (node,) = objects.ComputeNodeList.get_all_by_host(context, CONF.host)
    return str(node.hypervisor_hostname)


def _wanted(context: nova_context.RequestContext, had: Records) -> dict[str, Wanted]:
    """Return what the flavors and images of the instances in *had* request, by instance."""
    listed = objects.InstanceList.get_by_host(
        context, CONF.host, expected_attrs=["flavor", "system_metadata"]
    )
    wanted = dict.fromkeys(had.counted, Wanted())
    for instance in listed:
        if instance.uuid in wanted:
            flavor, devices = records.request_of(instance), had.devices(instance.uuid)
            # A stopped instance may have released them; one in ERROR claims them when it starts.
            is_released = not devices and instance.vm_state in (vm_states.STOPPED, vm_states.ERROR)
            wanted[instance.uuid] = Wanted(
                active=instance.vm_state == vm_states.ACTIVE,
                count=0 if is_released else asked_of(flavor, devices),
                aliased=names.PCI_ALIAS in flavor.extra_specs,
                near=_is_near(instance),
            )
    return wanted


def _is_near(instance: objects.Instance) -> bool:
    """Return whether a GPU of the instance must not be on another known node than its cells."""
    try:
        stated = hardware.get_pci_numa_policy_constraint(instance.flavor, instance.image_meta)
    except nova_exception.Invalid:  # as the API, which starts no such instance
        return False
    policy = affinity.policy(stated, CONF.gpu.pci_numa_affinity_policy)
    return policy in (Policy.REQUIRED, Policy.LEGACY)


def asked_of(flavor_request: FlavorRequest, held: Collection[Device]) -> int:
    """Return the number of GPUs and vGPUs that the flavor requests.

    If the flavor is invalid, return the number of devices in *held*, which the instance has: the
    API and the scheduler refuse such a flavor. If it requests vGPUs as Nova's ``resources:VGPU``
    only, count the vGPUs in *held*.
    """
    try:
        count = sum(request_.count for request_ in flavor_request.requests)
    except exception.InvalidExtraSpec:
        return len(held)
    if flavor_request.asks_for_vgpus and flavor_request.vgpus is None:
        count += len(device.slots(held))
    return count


def read_providers(
    client: Any,
    context: nova_context.RequestContext,
    nodename: str,
    mode: DeliveryMode,
    cards: HostCards,
) -> dict[str, GroupProvider]:
    """Return the providers of the host's groups from Placement, by uuid."""
    root = client.get_provider_by_name(context, nodename)["uuid"]
    providers = {}
    for provider in client.get_providers_in_tree(context, root):
        key = names.parse_provider_name(nodename, provider["name"])
        if key is None:
            continue
        resource_class = device.resource_class_of(key)
        url = f"/resource_providers/{provider['uuid']}/inventories"
        inventory = placement_client.get(client, url)["inventories"].get(resource_class, {})
        providers[provider["uuid"]] = GroupProvider(
            name=provider["name"],
            total=inventory.get("total", 0),
            reserved=inventory.get("reserved", 0),
            fit=frozenset(
                address
                for address, gpu in cards.whole.items()
                if not cards.unavailable.get(address) and card_groups.group_key(gpu, mode) == key
            ),
            resource_class=resource_class,
        )
    return providers


def _holders(consumers: Iterable[str]) -> dict[str, Consumer]:
    context = nova_context.get_admin_context(read_deleted="yes")
    return {consumer: _holder(context, consumer) for consumer in consumers}


def _holder(context: nova_context.RequestContext, consumer: str) -> Consumer:
    try:
        instance = objects.Instance.get_by_uuid(context, consumer)
    except nova_exception.InstanceNotFound:
        pass
    else:
        if instance.deleted:
            return Consumer.DELETED
        here = instance.host in (None, CONF.host)
        return Consumer.ON_ITS_WAY if here or instance.task_state else Consumer.ELSEWHERE
    if abandoned_moves.ended(context, consumer):
        return Consumer.ENDED_MOVE
    try:
        objects.Migration.get_by_uuid(context, consumer)
    except nova_exception.MigrationNotFound:
        return Consumer.UNKNOWN
    return Consumer.ON_ITS_WAY


def made_vgpus(
    discovery: Discovery,
    parts: Mapping[PciAddress, DividedCard],
    owners: Mapping[str, Collection[Device]],
) -> dict[str, frozenset[Slot]]:
    """Return the vGPUs that exist on the host, by the uuid of the instance that they are made for.

    vGPUs that other programs made are left out, because their owners are unknown.

    :param owners: the devices that a domain names or the database counts, by the instance's uuid
    :raises OSError: if the kernel does not list the mediated devices
    """
    functions = {a: parent for card in parts.values() for a, parent in card.parents.items()}
    slots = {(uuid, slot) for uuid, has in owners.items() for slot in device.slots(has)}
    slots |= {(uuid, slot) for slot, uuid in MadeVGPUs(discovery.vgpus).instances().items()}
    slots_by_guest: dict[str, frozenset[Slot]] = {}
    for uuid, slot in slots:
        parent = functions.get(slot.parent)
        way = discovery.deliveries.part((parent or UNKNOWN).kind)
        if way.is_there(slot, uuid, parent):
            slots_by_guest[uuid] = slots_by_guest.get(uuid, frozenset()) | {slot}
    return slots_by_guest


def _free(cards: HostCards, taken: Set[Device], made: Collection[Slot]) -> dict[GroupKey, int]:
    """Return how many more vGPUs fit into each group's cards, whatever these cards' health."""
    slots = device.slots(taken)
    plain = {
        address
        for card in cards.parts.values()
        for address, parent in card.parents.items()
        if parent.kind.is_plain
    }
    # The driver of a plain function does not report that a guest has it.
    pending = {slot for slot in slots if slot.parent in plain or slot not in made}
    shared = {
        gpu.address: SharedCard(gpu, cards.parts[gpu.address]).without(taken)
        for gpu in cards.shared
    }
    return {
        key: sum(c.room(group.facts.id, slots, pending).free for c in group.cards.values())
        for key, group in vgpu_group.groups(shared).items()
    }
