# SPDX-License-Identifier: Apache-2.0
"""Reader of a host's cards and their parts: sysfs, libvirt, nova-compute's files, Placement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from nova import context as nova_context
from nova.virt.libvirt import host as libvirt_host

from nova_gpu.core import availability, device, names
from nova_gpu.core.availability import Reasons
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, DeliveryMode, GroupKey, PciAddress
from nova_gpu.core.vgpu import vgpu_group
from nova_gpu.core.vgpu.vgpu import UNKNOWN, DividedCard, Slot
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.mig import mig_layout
from nova_gpu.host.vfio import passthrough
from nova_gpu.virt.delivery.made_vgpus import MadeVGPUs
from nova_gpu.virt.inventory import card_groups, discovery, placement_client
from nova_gpu.virt.usage import domains
from nova_gpu.virt.verify.sources import Guest, Provider


@dataclasses.dataclass(frozen=True, slots=True)
class Cards:
    """The cards of a host, by sysfs and the host's drivers.

    ``whole``: the cards that guests get whole. ``shared``: the cards that guests get vGPUs of, and
    ``parts`` their vGPU types and functions. ``unread``: those in ``whole`` that have MIG instances
    which could not be read.
    """

    whole: Mapping[PciAddress, Card]
    parts: Mapping[PciAddress, DividedCard]
    shared: tuple[GPU, ...]
    unread: frozenset[PciAddress]

    @property
    def functions(self) -> frozenset[PciAddress]:
        """The PCI functions at which guests get vGPUs, or may get some."""
        known = (address for card in self.parts.values() for address in card.parents)
        return frozenset(known) | self.unread


def read(
    host: discovery.Discovery, unavailable: Callable[[Iterable[GPU]], Mapping[PciAddress, Reasons]]
) -> Cards:
    """Return the cards that the host has now.

    :param unavailable: return those of the whole cards that guests cannot get, with the reasons
    :raises DiscoveryFailed: if sysfs cannot be read
    """
    gpus = host.find()
    parts, others = host.in_parts(gpus)
    whole = [gpu for gpu in gpus if gpu.address not in parts]
    unread: frozenset[PciAddress] = frozenset()
    if host.delivery.shares_driver:
        mig = (gpu.address for gpu in whole if mig_layout.is_divided(gpu, host.roots))
        unread = frozenset(others).intersection(mig)
    reasons = availability.merge(
        {a: others[a] for a in unread},
        unavailable(whole),
        {a: availability.to_new(others[a]) for a in others.keys() - unread},
    )
    cards = {gpu.address: Card(gpu, reasons.get(gpu.address, ())) for gpu in whole}
    return Cards(cards, parts, tuple(gpu for gpu in gpus if gpu.address in parts), unread)


def unfit(host: discovery.Discovery, cards: Mapping[PciAddress, Card]) -> dict[Device, str]:
    """Return which of *cards* no guest can use, or have the wrong driver, with the reason."""
    return {
        address: str(reason)
        for address, card in cards.items()
        if (reason := _unbound(host, card.gpu) or availability.for_all(card.unavailable))
    }


def _unbound(host: discovery.Discovery, card: GPU) -> str | None:
    if host.delivery.shares_driver or passthrough.is_with_vfio(card, host.roots):
        return None
    return (
        f"it is bound to {card.driver or 'no driver'} and not to vfio-pci; see nova-gpu host check"
    )


def guests(host: discovery.Discovery, libvirt: libvirt_host.Host, cards: Cards) -> dict[str, Guest]:
    """Return the domains by uuid, each with the devices of the host that it names or reaches.

    :raises DomainsUnreadable: if libvirt does not list the domains
    """
    whole = (card.gpu for card in cards.whole.values())
    made_vgpus = MadeVGPUs(host.vgpus).by_instance()
    parts = domains.parts(whole, host.roots, cards.parts.values(), vgpus=made_vgpus)
    named = domains.look(libvirt, parts)
    running = domains.running(libvirt)
    guests_ = {}
    for uuid, item in named.items():
        # The division of these cards is unknown. The nodes of a guest's part lead to the whole card
        # as well, which must not count as the guest's.
        untold = cards.unread & {slot.parent for slot in device.slots(item.own)}
        guests_[uuid] = Guest(
            uuid in running, item.every - untold, item.reached - untold, item.opened, item.cells
        )
    return guests_


# Parts of cards


def made(
    host: discovery.Discovery,
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
    slots |= {(uuid, slot) for slot, uuid in MadeVGPUs(host.vgpus).instances().items()}
    slots_by_guest: dict[str, frozenset[Slot]] = {}
    for uuid, slot in slots:
        parent = functions.get(slot.parent)
        way = host.ways.part((parent or UNKNOWN).kind)
        if way.is_there(slot, uuid, parent):
            slots_by_guest[uuid] = slots_by_guest.get(uuid, frozenset()) | {slot}
    return slots_by_guest


def free(
    gpus: Iterable[GPU],
    parts: Mapping[PciAddress, DividedCard],
    taken: Collection[Device],
    made: Collection[Slot],
) -> dict[GroupKey, int]:
    """Return how many more vGPUs fit into each group's cards, whatever these cards' health.

    :param taken: the slots and the functions that are in use
    :param made: the slots among *taken* whose vGPU exists
    """
    whole = frozenset(taken)
    slots = device.slots(taken)
    plain = {
        address
        for card in parts.values()
        for address, parent in card.parents.items()
        if parent.kind.is_plain
    }
    # The driver of a plain function does not report that a guest has it.
    pending = {slot for slot in slots if slot.parent in plain or slot not in made}
    cards = {gpu.address: SharedCard(gpu, parts[gpu.address]).without(whole) for gpu in gpus}
    return {
        key: sum(c.room(group.facts.id, slots, pending).free for c in group.cards.values())
        for key, group in vgpu_group.groups(cards).items()
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """A card that guests get whole, and the reasons why they cannot get it now."""

    gpu: GPU
    unavailable: Reasons = ()


def node_consumers(
    client: Any, context: nova_context.RequestContext, nodename: str
) -> frozenset[str]:
    """Return the uuids of the consumers with an allocation from the compute node itself."""
    root = client.get_provider_by_name(context, nodename)["uuid"]
    return frozenset(client.get_allocations_for_resource_provider(context, root).allocations)


def read_providers(
    client: Any,
    context: nova_context.RequestContext,
    nodename: str,
    mode: DeliveryMode,
    cards: Mapping[PciAddress, Card],
) -> dict[str, Provider]:
    """Return the providers of the host's groups from Placement, by uuid."""
    root = client.get_provider_by_name(context, nodename)["uuid"]
    providers = {}
    for provider in client.get_providers_in_tree(context, root):
        key = names.parse_provider_name(nodename, provider["name"])
        if key is None:
            continue
        resource_class = device.resource_class_of(key)
        uuid = provider["uuid"]
        answer = placement_client.get(client, f"/resource_providers/{uuid}/inventories")
        inventory = answer["inventories"].get(resource_class, {})
        allocations = client.get_allocations_for_resource_provider(context, uuid).allocations
        providers[uuid] = Provider(
            name=provider["name"],
            total=inventory.get("total", 0),
            reserved=inventory.get("reserved", 0),
            allocated={
                consumer: allocation["resources"][resource_class]
                for consumer, allocation in allocations.items()
                if resource_class in allocation["resources"]
            },
            fit=frozenset(
                address
                for address, card in cards.items()
                if not card.unavailable and card_groups.group_key(card.gpu, mode) == key
            ),
            resource_class=resource_class,
        )
    return providers
