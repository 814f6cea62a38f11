# SPDX-License-Identifier: Apache-2.0
"""Asks sysfs, libvirt, Nova's database and Placement about a host's GPUs.

The database is asked through the conductor and Placement through Nova's own client of it, as
nova-compute does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import vm_states
from nova.virt.libvirt import host as libvirt_host

from nova_gpu.conf import CONF
from nova_gpu.core import device, exception, names, request
from nova_gpu.core.model import GPU, DeliveryMode, PciAddress
from nova_gpu.host import passthrough
from nova_gpu.virt import domains, offer, orphans, placement, records, survey
from nova_gpu.virt.truths import Guest, Holder, Instance, Provider, Truths

_T = TypeVar("_T")
# What says where each of them is.
_OPTIONS = {
    "sysfs": "[gpu]sysfs_root",
    "libvirt": "[libvirt]virt_type and connection_uri",
    "Nova's database": "nova-conductor, which is asked for it, and [DEFAULT]transport_url",
    "Placement": "the options of [placement]",
}
_SETTLED = (vm_states.ACTIVE, vm_states.STOPPED)


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """Who is asked. ``placement``: Nova's report client. ``obstacles``: why cards cannot be given.

    ``ask`` calls what it is given, and may give up on it with any exception.
    """

    looked: survey.Survey
    libvirt: libvirt_host.Host
    placement: Any
    obstacles: Callable[[Iterable[GPU]], Mapping[PciAddress, str]]
    ask: Callable[[Callable[[], Any]], Any] = lambda read: read()


class _Answers:
    """What was asked, and who did not answer"""

    def __init__(self, sources: Sources) -> None:
        self._ask = sources.ask
        self.unread: list[str] = []

    def of(self, who: str, read: Callable[[], _T]) -> _T | None:
        try:
            answer: _T = self._ask(read)
        except Exception as error:  # whatever libvirt, the bus, the database or Placement raise
            # What comes from another service has that one's stack below it.
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self.unread.append(f"{who}: {lines[0]}; see {_OPTIONS[who]}")
            return None
        return answer


def gather(sources: Sources) -> Truths:
    """What each of the four says now. Nothing raises: who does not answer is in ``unread``."""
    answers = _Answers(sources)
    context = nova_context.get_admin_context()
    gpus = answers.of("sysfs", lambda: _gpus(sources))
    guests, nodename = None, None
    if gpus is not None:
        guests = answers.of("libvirt", lambda: _guests(sources, gpus))
        if guests is not None:
            nodename = answers.of("libvirt", sources.libvirt.get_hostname)
    if nodename is None:
        nodename = answers.of("Nova's database", lambda: _nodename(context))
    found = providers = None
    if nodename is not None:
        node: str = nodename
        # Before the database: who comes to be in between is looked up there.
        providers = answers.of("Placement", lambda: _providers(sources, context, node, gpus or {}))
        with_gpus = [uuid for uuid, guest in (guests or {}).items() if guest.cards]
        found = answers.of("Nova's database", lambda: _instances(context, node, with_gpus))
    instances, returning = found or (None, frozenset())
    consumers = {each for provider in (providers or {}).values() for each in provider.allocated}
    holders = None
    if instances is not None:
        others = consumers - instances.keys()
        holders = answers.of("Nova's database", lambda: _holders(others))
    return Truths(
        cards=None if gpus is None else frozenset(gpus),
        unfit={} if gpus is None else _unfit(sources, gpus),
        guests=guests,
        instances=instances,
        returning=returning,
        providers=providers,
        holders=holders or {},
        unread=tuple(dict.fromkeys(answers.unread)),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Card:
    gpu: GPU
    obstacle: str | None


def _gpus(sources: Sources) -> dict[PciAddress, _Card]:
    found = sources.looked.find_whole()  # others are not compared
    obstacles = sources.obstacles(found)
    return {gpu.address: _Card(gpu, obstacles.get(gpu.address)) for gpu in found}


def _unfit(sources: Sources, cards: Mapping[PciAddress, _Card]) -> dict[PciAddress, str]:
    looked = sources.looked
    reasons = {address: card.obstacle for address, card in cards.items() if card.obstacle}
    if looked.mode is DeliveryMode.PCI:
        for address, card in cards.items():
            if not passthrough.is_with_vfio(card.gpu, looked.roots):
                reasons[address] = (
                    f"it is with {card.gpu.driver or 'no driver'} and not with vfio-pci; see "
                    "nova-gpu host check"
                )
    return reasons


def _guests(sources: Sources, cards: Mapping[PciAddress, _Card]) -> dict[str, Guest]:
    looked = sources.looked
    everything = offer.offer(
        (card.gpu for card in cards.values()), {}, looked.mode, {}, offer.Ailments()
    )
    named = domains.gpus_by_domain(sources.libvirt, looked.parts(everything))
    running = domains.running(sources.libvirt)
    guests = {}
    for uuid, gpus in named.items():  # without vGPUs, which are not compared
        whole = frozenset(each for each in gpus if isinstance(each, PciAddress))
        guests[uuid] = Guest(uuid in running, whole)
    return guests


def _nodename(context: nova_context.RequestContext) -> str:
    """Where libvirt does not say"""
    (node,) = objects.ComputeNodeList.get_all_by_host(context, CONF.host)
    return str(node.hypervisor_hostname)


def _instances(
    context: nova_context.RequestContext, nodename: str, guests: Collection[str]
) -> tuple[dict[str, Instance], frozenset[str]]:
    """The host's instances, and those on their way back to it"""
    counted = records.read(context, CONF.host, nodename, guests)
    migrations = objects.MigrationList.get_in_progress_and_error(context, CONF.host, nodename)
    moving = {each.instance_uuid for each in migrations if each.status != "error"}
    listed = objects.InstanceList.get_by_host(context, CONF.host, expected_attrs=["flavor"])
    by_uuid = {instance.uuid: instance for instance in listed}
    instances = {}
    for uuid, identifiers in counted.counted.items():
        instance = by_uuid.get(uuid)
        state = instance.vm_state if instance else None
        specs = instance.flavor.extra_specs if instance else {}
        devices = [(provider, device.parse(text)) for provider, text in identifiers]
        cards = [(provider, each) for provider, each in devices if isinstance(each, PciAddress)]
        instances[uuid] = Instance(
            active=state == vm_states.ACTIVE,
            settled=state in _SETTLED and uuid not in moving | counted.busy,
            asked=_asked(specs, len(cards)),
            counted=frozenset(cards),
            aliased="pci_passthrough:alias" in specs,
        )
    return instances, counted.returning


def _asked(extra_specs: Mapping[str, str], held: int) -> int:
    """Of a flavor that cannot be read any more, what it has: the API and the scheduler refuse it"""
    try:
        asked = request.parse(extra_specs)
    except exception.InvalidExtraSpec:
        return held
    return asked.count if asked else 0


def _providers(
    sources: Sources,
    context: nova_context.RequestContext,
    nodename: str,
    cards: Mapping[PciAddress, _Card],
) -> dict[str, Provider]:
    client = sources.placement
    root = client.get_provider_by_name(context, nodename)["uuid"]
    providers = {}
    for each in client.get_providers_in_tree(context, root):
        key = names.parse_provider_name(nodename, each["name"])
        if key is None or key.mode is DeliveryMode.VGPU:
            continue
        uuid = each["uuid"]
        inventory = _inventory(client, uuid)
        allocations = client.get_allocations_for_resource_provider(context, uuid).allocations
        own = {
            address: card.obstacle is None
            for address, card in cards.items()
            if offer.group_key(card.gpu, sources.looked.mode) == key
        }
        providers[uuid] = Provider(
            name=each["name"],
            total=inventory.get("total", 0),
            reserved=inventory.get("reserved", 0),
            allocated={
                consumer: allocation["resources"][names.RESOURCE_CLASS]
                for consumer, allocation in allocations.items()
                if names.RESOURCE_CLASS in allocation["resources"]
            },
            cards=frozenset(own),
            fit=frozenset(address for address, is_fit in own.items() if is_fit),
        )
    return providers


def _inventory(client: Any, provider_uuid: str) -> Mapping[str, int]:
    answer = placement.get(client, f"/resource_providers/{provider_uuid}/inventories")
    inventory: Mapping[str, int] = answer["inventories"].get(names.RESOURCE_CLASS, {})
    return inventory


def _holders(consumers: Iterable[str]) -> dict[str, Holder]:
    context = nova_context.get_admin_context(read_deleted="yes")
    return {consumer: _holder(context, consumer) for consumer in consumers}


def _holder(context: nova_context.RequestContext, consumer: str) -> Holder:
    try:
        instance = objects.Instance.get_by_uuid(context, consumer)
    except nova_exception.InstanceNotFound:
        pass
    else:
        if instance.deleted:
            return Holder.DELETED
        here = instance.host in (None, CONF.host)
        return Holder.ON_ITS_WAY if here or instance.task_state else Holder.ELSEWHERE
    if orphans.ended(context, consumer):
        return Holder.ENDED_MOVE
    try:
        objects.Migration.get_by_uuid(context, consumer)
    except nova_exception.MigrationNotFound:
        return Holder.UNKNOWN
    return Holder.ON_ITS_WAY
