# SPDX-License-Identifier: Apache-2.0
"""What nova-gpu would do on a host of stock Nova: groups, starts, and instances to take over.

Everything here is only read.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from nova import context as nova_context

from nova_gpu.conf import CONF
from nova_gpu.core import device, names, unavailability
from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.core.vgpu import vgpu_capacity, vgpu_group
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import binding, passthrough
from nova_gpu.host.vgpu import mdev, sriov
from nova_gpu.virt.delivery.pci_aliases import DeviceSpec
from nova_gpu.virt.inventory import card_groups
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.usage import domains
from nova_gpu.virt.verify import gather
from nova_gpu.virt.verify.gather import HostCards
from nova_gpu_migrate.core import adoption_plan, leave_plan
from nova_gpu_migrate.core.former import Former
from nova_gpu_migrate.core.stock_holding import (
    Alias,
    Domain,
    Hardware,
    MdevType,
    Obstacle,
    StockHolding,
    StockInstance,
    StockMdev,
    StockProvider,
    StockReturn,
)
from nova_gpu_migrate.virt import aliases, providers, records

_Item = TypeVar("_Item", StockHolding, StockReturn)


@dataclasses.dataclass(frozen=True, slots=True)
class ShadowGroup:
    """A group that nova-gpu would offer: one resource provider.

    ``total`` is the number of its cards, or how many vGPUs of the type its empty cards carry.
    """

    provider: str
    resource_class: str
    product: Product
    total: int
    cards: tuple[PciAddress, ...]
    vgpu_type: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ShadowCard:
    """What nova-gpu would do with a card; ``reason`` is why it would not offer it.

    ``holders`` are the uuids of the domains that have it or a part of it, ``providers`` the names
    of stock Nova's resource providers for it. ``named`` are its functions that domains have.
    ``start``, ``release`` and ``cleaning`` are sentences
    about a guest's start and end, empty for a card that is offered in parts.
    """

    gpu: GPU
    reason: str | None
    holders: tuple[str, ...]
    providers: tuple[str, ...]
    start: str = ""
    release: str = ""
    cleaning: str = ""
    named: frozenset[PciAddress] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Shadow:
    """What nova-gpu would do on the host.

    ``holdings`` are the instances that have GPUs by stock Nova, ``leavings`` those that have them
    by nova-gpu. ``strangers`` are the domains with GPUs that are no instances of this host, with
    their cards. ``unread`` are sentences about sources that could not be read. ``mediating`` are
    the functions at which mediated devices are made. ``mediated`` is how many each domain has at a
    function, of a resource class of stock Nova. ``consumers`` are the uuids for which Placement
    counts GPUs of nova-gpu's groups here, and which are no instances of this host. ``divided`` are
    the cards of which stock Nova's providers have ``VGPU``. ``misplaced`` are the uuids for which
    Placement counts a PCI device that Nova's database gives to no instance, by card.
    """

    node: str | None
    groups: tuple[ShadowGroup, ...]
    cards: tuple[ShadowCard, ...]
    aliases: tuple[Alias, ...]
    holdings: tuple[StockHolding, ...]
    leavings: tuple[StockReturn, ...]
    strangers: Mapping[str, tuple[PciAddress, ...]]
    unread: tuple[str, ...]
    mediating: frozenset[PciAddress] = frozenset()
    mediated: Mapping[str, Mapping[tuple[PciAddress, str], int]] = dataclasses.field(
        default_factory=dict
    )
    consumers: tuple[str, ...] = ()
    divided: frozenset[PciAddress] = frozenset()
    misplaced: Mapping[PciAddress, frozenset[str]] = dataclasses.field(default_factory=dict)


def look(
    sources: gather.Sources,
    preferred: Collection[str] = (),
    types: Collection[MdevType] = (),
    device_spec: Sequence[str] = (),
) -> Shadow:
    """Read all sources and return what nova-gpu would do.

    :param preferred: the names of the aliases to give functions back by, if several give one
    :param types: those of mediated devices that stock Nova makes on this host
    :param device_spec: the values of ``[pci]device_spec`` for stock Nova
    """
    ask = gather.Questions(sources.ask)
    context = nova_context.get_admin_context()
    discovery = sources.discovery
    cards = ask("sysfs", gather.read_cards, discovery, sources.unavailable)
    if cards is None:
        return Shadow(None, (), (), (), (), (), {}, ask.unread)
    nodename = ask("libvirt", sources.libvirt.get_hostname)
    named = ask("libvirt", _domains, sources)
    hardware = ask("sysfs", _hardware, discovery, cards)
    instances = stock = functions = None
    consumers: frozenset[str] = frozenset()
    if nodename is not None:
        instances = ask("Nova's database", records.read, context, CONF.host, nodename)
    if nodename is not None and hardware is not None:
        client = sources.placement
        stock = ask("Placement", _providers, client, context, nodename, hardware)
        consumers = ask("Placement", _consumers, client, context, nodename) or consumers
    if hardware is not None:
        functions = ask("sysfs", _functions, hardware, device_spec, discovery.roots, stock)
    known_aliases = functions.given_by(aliases.configured(CONF.pci.alias)) if functions else []
    holdings: list[StockHolding] = []
    leavings: list[StockReturn] = []
    users: Mapping[PciAddress, tuple[str, ...]] = {}
    strangers: Mapping[str, tuple[PciAddress, ...]] = {}
    if named is not None and hardware is not None:
        users = _users(named, hardware)
        if instances is not None:
            whole = dataclasses.replace(hardware, providers=stock or {})
            arguments = named, hardware, known_aliases, types
            aliases_of = functools.partial(_former_aliases, functions)
            judged = (adoption_plan.judge(instance, named, whole) for instance in instances)
            holdings = [
                dataclasses.replace(
                    holding, back=leave_plan.back(holding, *arguments, aliases_of(holding.former))
                )
                for holding in judged
                if holding
            ]
            judged_back = (
                leave_plan.judge(instance, *arguments, preferred, aliases_of(instance.former))
                for instance in instances
            )
            leavings = [item for item in judged_back if item]
            strangers = _strangers(users, {instance.uuid for instance in instances})
    # One tells of all: the conductor has the API's database, or lacks it.
    own = [*(it.instance for it in holdings), *(it.instance for it in leavings)]
    for instance in own[:1]:
        if unread := ask("nova-conductor", records.unread, context, instance.uuid):
            holdings = [_hindered(holding, unread) for holding in holdings]
            leavings = [_hindered(item, unread) for item in leavings]
    in_domains = frozenset[PciAddress]().union(*(it.functions for it in (named or {}).values()))
    return Shadow(
        nodename,
        tuple(_groups(nodename, discovery, cards)),
        tuple(_cards(discovery, cards, users, _names_by_card(stock or {}, hardware), in_domains)),
        tuple(alias for alias in known_aliases if alias.cards),
        tuple(holdings),
        tuple(leavings),
        strangers,
        ask.unread,
        frozenset(
            address
            for card in cards.parts.values()
            for address, parent in card.parents.items()
            if parent.kind.is_mediated
        ),
        _counts(named or {}, hardware, types) if hardware else {},
        tuple(sorted(consumers - {it.uuid for it in instances or () if it.elsewhere is None})),
        _divided(stock or {}, hardware) if hardware else frozenset(),
        _misplaced(nodename, stock or {}, hardware, instances or ()) if hardware else {},
    )


def _misplaced(
    nodename: str | None,
    stock: Mapping[PciAddress, StockProvider],
    hardware: Hardware,
    instances: Iterable[StockInstance],
) -> dict[PciAddress, frozenset[str]]:
    """Return the consumers of cards that Nova's database gives to no instance.

    A move of Nova's claims the devices by the flavor, whichever Placement counts
    (nova.compute.resource_tracker.ResourceTracker._move_claim).
    """
    cards = hardware.cards_by_function
    held = {cards.get(function) for it in instances for function in it.recorded}
    return {
        cards[function]: provider.consumers
        for function, provider in stock.items()
        if provider.consumers
        and cards[function] not in held
        and provider.name != providers.name_of(nodename or "", function)
    }


def _divided(
    stock: Mapping[PciAddress, StockProvider], hardware: Hardware
) -> frozenset[PciAddress]:
    own = (
        it
        for it, provider in stock.items()
        if names.VGPU_RESOURCE_CLASS in provider.resource_classes
    )
    return frozenset(hardware.cards_by_function[function] for function in own)


def _strangers(
    users: Mapping[PciAddress, Collection[str]], instances: Collection[str]
) -> dict[str, tuple[PciAddress, ...]]:
    """Return the cards of each domain that is none of the *instances*, which are UUIDs."""
    strangers = {uuid for uuids in users.values() for uuid in uuids if uuid not in instances}
    return {
        uuid: tuple(sorted(card for card, uuids in users.items() if uuid in uuids))
        for uuid in sorted(strangers)
    }


def _counts(
    named: Mapping[str, Domain], hardware: Hardware, types: Collection[MdevType]
) -> dict[str, Mapping[tuple[PciAddress, str], int]]:
    counts: dict[str, Mapping[tuple[PciAddress, str], int]] = {}
    for uuid, domain in named.items():
        made = (hardware.mediated[dev] for dev in domain.mediated & hardware.mediated.keys())
        at = ((item.parent, leave_plan.class_at(item.parent, item.type_id, types)) for item in made)
        counts[uuid] = collections.Counter((parent, name) for parent, name in at if name)
    return counts


def _former_aliases(functions: aliases.Functions | None, former: Former | None) -> list[Alias]:
    """Return what the aliases by which an instance once asked give on this host."""
    if functions is None or former is None:
        return []
    return functions.given_by({name: request.specs for name, request in former.requests.items()})


def _functions(
    hardware: Hardware,
    device_spec: Sequence[str],
    roots: Roots,
    stock: Mapping[PciAddress, StockProvider] | None,
) -> aliases.Functions:
    whole = [gpu for gpu in hardware.gpus.values() if gpu.address not in hardware.parts]
    spec = DeviceSpec(device_spec)
    companions = [
        item for gpu in whole for item in gpu.companions if spec.obstacle([item], roots) is not None
    ]
    virtual = {
        parent
        for card, divided in hardware.parts.items()
        for parent in divided.parents.keys() - {*hardware.gpus[card].functions}
    }
    slots = adoption_plan.function_slots(virtual, hardware)
    return aliases.read(whole, slots, companions, roots, spec, stock or {})


def _domains(sources: gather.Sources) -> dict[str, Domain]:
    return {uuid: Domain(*devices) for uuid, devices in domains.hostdevs(sources.libvirt).items()}


def _hardware(discovery: Discovery, cards: HostCards) -> Hardware:
    gpus = {**cards.whole, **{gpu.address: gpu for gpu in cards.shared}}
    functions = {function: gpu.address for gpu in gpus.values() for function in gpu.functions}
    for address in gpus:
        virtual = sriov.virtual_functions(sysfs.device(address, discovery.roots))
        functions |= dict.fromkeys(virtual.values(), address)
    mediated = {
        uuid: StockMdev(item.parent, card, item.type_id)
        for uuid, item in mdev.devices(discovery.roots).items()
        if item.parent is not None
        and (card := functions.get(item.parent) or device.card_of(item.parent, gpus)) is not None
    }
    return Hardware(gpus, cards.unavailable, functions, mediated, cards.parts)


def _users(named: Mapping[str, Domain], hardware: Hardware) -> dict[PciAddress, tuple[str, ...]]:
    """Return the uuids of the domains that have each card, or a part of it."""
    users: dict[PciAddress, tuple[str, ...]] = {}
    for uuid, domain in sorted(named.items()):
        functions = domain.functions & hardware.cards_by_function.keys()
        own = {hardware.cards_by_function[function] for function in functions}
        own |= {hardware.mediated[dev].card for dev in domain.mediated & hardware.mediated.keys()}
        for card in own:
            users[card] = (*users.get(card, ()), uuid)
    return users


def _providers(
    client: Any, context: nova_context.RequestContext, nodename: str, hardware: Hardware
) -> dict[PciAddress, StockProvider]:
    """Return stock Nova's resource providers of the host's cards, by function."""
    root = client.get_provider_by_name(context, nodename)["uuid"]
    providers_by_function = {}
    for provider in client.get_providers_in_tree(context, root):
        name, function = provider["name"], providers.function_of(provider["name"])
        # A flavor may name the resource classes and traits of one with mediated devices, an alias
        # those of a card.
        if function is not None and function in hardware.cards_by_function:
            providers_by_function[function] = providers.read(client, name, provider["uuid"])
    return providers_by_function


def _hindered(item: _Item, obstacle: Obstacle) -> _Item:
    return dataclasses.replace(item, obstacles=(*item.obstacles, obstacle))


def _consumers(client: Any, context: nova_context.RequestContext, nodename: str) -> frozenset[str]:
    """Return the uuids of all for which Placement counts GPUs of nova-gpu's groups."""
    root = client.get_provider_by_name(context, nodename)["uuid"]
    groups = (
        provider["uuid"]
        for provider in client.get_providers_in_tree(context, root)
        if names.parse_provider_name(nodename, provider["name"]) is not None
    )
    answers = (client.get_allocations_for_resource_provider(context, group) for group in groups)
    return frozenset(consumer for answer in answers for consumer in answer.allocations)


def _names_by_card(
    stock: Mapping[PciAddress, StockProvider], hardware: Hardware | None
) -> dict[PciAddress, tuple[str, ...]]:
    """Return the names of stock Nova's resource providers for each card."""
    names_by_card: dict[PciAddress, tuple[str, ...]] = {}
    for function, provider in stock.items():
        card = hardware.cards_by_function[function] if hardware else function
        names_by_card[card] = (*names_by_card.get(card, ()), provider.name)
    return names_by_card


def _groups(nodename: str | None, discovery: Discovery, cards: HostCards) -> Iterator[ShadowGroup]:
    """Yield the groups of whole cards, and then those of vGPUs.

    The name of the compute node is the beginning of a provider's name.
    """
    node = nodename or CONF.host
    groups = card_groups.offered(
        cards.whole.values(), {}, discovery.delivery.mode, cards.unavailable
    )
    for key, group in groups.items():
        provider = names.provider_name(node, key)
        of_key = device.resource_class_of(key)
        yield ShadowGroup(
            provider, of_key, group.product, len(group.gpus), tuple(sorted(group.gpus))
        )
    shared = {gpu.address: SharedCard(gpu, cards.parts[gpu.address]) for gpu in cards.shared}
    for key, parts in vgpu_group.groups(shared).items():
        type_id = parts.facts.id
        total = sum(vgpu_capacity.carried(card.card, type_id) or 0 for card in parts.cards.values())
        yield ShadowGroup(
            names.provider_name(node, key),
            device.resource_class_of(key),
            parts.product,
            total,
            tuple(sorted(parts.cards)),
            type_id,
        )


def _cards(
    discovery: Discovery,
    cards: HostCards,
    users: Mapping[PciAddress, tuple[str, ...]],
    provider_names: Mapping[PciAddress, tuple[str, ...]],
    functions: frozenset[PciAddress],
) -> Iterator[ShadowCard]:
    """Yield the host's cards, whole ones first.

    :param functions: those that domains have
    """
    for address, gpu in sorted(cards.whole.items()):
        known = users.get(address, ()), provider_names.get(address, ())
        start, release, cleaning = _steps(discovery, gpu)
        named = functions.intersection(gpu.functions)
        reason = unavailability.text(cards.unavailable.get(address, ()))
        yield ShadowCard(gpu, reason, *known, start, release, cleaning, named)
    for gpu in cards.shared:
        yield ShadowCard(gpu, None, users.get(gpu.address, ()), provider_names.get(gpu.address, ()))


def _steps(discovery: Discovery, gpu: GPU) -> Iterable[str]:
    """Yield what happens to a whole card at a guest's start, at its end, and in its cleaning."""
    clean = "cleaned by [gpu]clean_command" if CONF.gpu.clean_command else ""
    if discovery.delivery.shares_driver:
        yield "its device nodes are given to the container"
        yield "the processes of the container that have it open are ended"
        yield clean
        return
    if passthrough.is_with_vfio(gpu, discovery.roots):
        yield "it stays bound to vfio-pci"
    else:
        yield f"it is bound from {gpu.driver or 'no driver'} to vfio-pci, and back at the end"
    try:
        own = binding.resets_functions(gpu, discovery.roots)
        yield "each of its functions is reset" if own else "its whole bus is reset by VFIO"
    except OSError as error:
        yield passthrough.unread(error)
    yield clean
