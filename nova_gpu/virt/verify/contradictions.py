# SPDX-License-Identifier: Apache-2.0
"""Comparison of the four sources about a host's GPUs: the contradictions, each with a remedy.

The sources are sysfs, libvirt, Nova's database and Placement. :mod:`nova_gpu.virt.verify.gather`
reads them; nothing is read here. The GPUs of an instance with a task are not compared, because the
sources learn of a change one after another.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterator

from nova_gpu.core import device, names
from nova_gpu.core.device import Device
from nova_gpu.core.topology import affinity
from nova_gpu.core.topology.affinity import Policy
from nova_gpu.virt.usage.domains import DomainDevices
from nova_gpu.virt.verify.sources import (
    Conflict,
    Consumer,
    Devices,
    Difference,
    GroupProvider,
    HostState,
)

_NONE: Devices = frozenset()
_NOUNS = {names.RESOURCE_CLASS: "GPUs", names.VGPU_RESOURCE_CLASS: "vGPUs"}
_REMEDY = (
    "nova-compute corrects it within a period, or if another service wrote it within "
    "[compute]resource_provider_association_refresh; see its log, and whether it runs"
)


def compare(state: HostState) -> tuple[Difference, ...]:
    """Return the contradictions between those of the four sources that answered."""
    vgpus = tuple(_vgpus(state))
    if vgpus:
        # A left vGPU takes room until it is removed, so the number of free vGPUs is not compared.
        state = dataclasses.replace(state, vgpus_free={})
    return (
        *_shared(state),
        *_domains(state),
        *_instances(state),
        *_cards(state),
        *_allocations(state),
        *_strange_allocations(state),
        *vgpus,
        *_inventories(state),
    )


def _shared(state: HostState) -> Iterator[Difference]:
    # A reached device may not be openable: only those that a guest can open are shared.
    by_guest = {uuid: guest.own | guest.opened for uuid, guest in (state.guests or {}).items()}
    for card, uuids in device.shared(by_guest).items():
        yield Difference(
            Conflict.SHARED_BY_DOMAINS,
            str(card),
            f"GPU {card} is named by the domains {', '.join(uuids)}",
            "stop all of them but one, and reboot the instances that are left with --hard",
        )
    for card, uuids in device.shared(state.held()).items():
        yield Difference(
            Conflict.SHARED_BY_INSTANCES,
            str(card),
            f"GPU {card} is counted for the instances {', '.join(uuids)}",
            "delete, or shelve and unshelve, all of them but one",
        )


def _domains(state: HostState) -> Iterator[Difference]:
    """Yield domains that reach devices of others, or have devices and are no instance's here."""
    if state.guests is None or state.records is None:
        return
    held = state.held()
    for uuid, guest in state.guests.items():
        if reached := guest.reached - held.get(uuid, _NONE):
            others = sorted(
                other
                for other, own in held.items()
                if other != uuid and device.clashing(reached, own)
            )
            whose = f"which the instances {', '.join(others)} have" if others else "not its own"
            yield Difference(
                Conflict.REACHES_OTHERS,
                uuid,
                f"the guest {uuid} reaches {_words(reached)}, {whose}",
                "stop it, then start it; where two reach each other's, stop both first. No new "
                "guest gets such a GPU until this one has ended",
            )
        if guest.every and uuid not in held.keys() | state.records.returning:
            yield Difference(
                Conflict.FOREIGN_DOMAIN,
                uuid,
                f"the domain {uuid} has {_words(guest.every)}, and is no instance of this host",
                "if it is not needed: virsh destroy and virsh undefine; until then the cards are "
                "reserved",
            )


def _instances(state: HostState) -> Iterator[Difference]:
    for uuid, own in _settled(state).items():
        wanted = state.wanted[uuid]
        if len(own) != wanted.count:
            yield Difference(
                Conflict.FLAVOR_DIFFERS,
                uuid,
                f"instance {uuid} holds {len(own)} GPUs and its flavor asks for {wanted.count}",
                "resize it, or delete it: it cannot be started as it is",
            )
        guest = (state.guests or {}).get(uuid)
        if guest is None or guest.run is None:
            if state.guests is not None and wanted.active and own:
                yield Difference(
                    Conflict.NO_DOMAIN,
                    uuid,
                    f"instance {uuid} is ACTIVE with {_words(own)}, and its guest does not run",
                    f"openstack server reboot --hard {uuid}",
                )
        elif not guest.every >= own if wanted.aliased else guest.own != own:
            yield Difference(
                Conflict.DOMAIN_DIFFERS,
                uuid,
                f"instance {uuid} has {_words(own)} in Nova's database and {_words(guest.every)} "
                "in its domain",
                f"openstack server reboot --hard {uuid}",
            )


def _settled(state: HostState) -> dict[str, Devices]:
    """Return the devices of each instance that has no task and no move."""
    settled = state.records.settled if state.records else ()
    return {uuid: own for uuid, own in state.held().items() if uuid in settled}


def _cards(state: HostState) -> Iterator[Difference]:
    """Yield the cards and vGPUs of instances that the host lacks, or that no guest can use."""
    for uuid, own in _settled(state).items():
        for card in sorted(own, key=str):
            if state.cards is not None and not _is_here(card, state):
                yield Difference(
                    Conflict.CARD_MISSING,
                    str(card),
                    f"GPU {card} of instance {uuid} is not on this host",
                    "repair the host, or move the instance away: it does not start here",
                )
            elif reason := state.unfit.get(card):
                yield Difference(
                    Conflict.CARD_UNFIT,
                    str(card),
                    f"GPU {card} of instance {uuid}: {reason}",
                    "then reboot the instance with --hard",
                )
        guest = (state.guests or {}).get(uuid)
        if guest and guest.cells and state.wanted[uuid].near:
            far = {card for card in own if state.nodes.get(card, -1) not in guest.cells}
            for card in sorted(far & state.nodes.keys(), key=str):
                yield Difference(
                    Conflict.CARD_REMOTE,
                    str(card),
                    f"GPU {card} of instance {uuid} is on NUMA node {state.nodes[card]}, and its "
                    f"cells are on {', '.join(map(str, sorted(guest.cells)))}",
                    "move the instance (openstack server migrate), or resize it to a flavor with "
                    f"{affinity.EXTRA_SPEC}={Policy.PREFERRED}; until then it works, but slower",
                )


def _allocations(state: HostState) -> Iterator[Difference]:
    """Yield the instances whose allocation from a provider differs from their number of GPUs."""
    if state.providers is None or state.records is None:
        return
    read, settled = state.records, _settled(state)
    for uuid in sorted(read.idle):
        agrees = True
        has = dict.fromkeys(state.providers, 0)
        for its_provider, _ in read.counted[uuid]:
            has[its_provider] = has.get(its_provider, 0) + 1
        for provider_uuid, amount in has.items():
            provider = state.providers.get(provider_uuid)
            if provider is None:
                yield Difference(
                    Conflict.ALLOCATION_ELSEWHERE,
                    uuid,
                    f"instance {uuid} has {amount} GPUs of {provider_uuid}, which is no group of "
                    "this host",
                    "move it to another host and back, or delete it",
                )
            elif (counts := state.allocated(provider_uuid).get(uuid, 0)) < amount or (
                counts > amount and uuid in settled
            ):
                # Fewer are allocated only if the instance's GPUs match its flavor.
                safe = counts < amount or state.wanted[uuid].count == len(read.counted[uuid])
                agrees = False
                yield Difference(
                    Conflict.ALLOCATION_DIFFERS,
                    uuid,
                    f"instance {uuid} has {amount} GPUs of {provider.name}, and Placement counts "
                    f"{counts} for it",
                    "nova-gpu verify --repair sets its allocation to that number"
                    if safe
                    else "resize the instance first, so that it has what its flavor asks for",
                    safe,
                )
        lacks = state.allocations.lacking.get(uuid)
        if agrees and lacks:  # else the same repair allocates both
            amounts = ", ".join(f"{lacks[name]} {name}" for name in sorted(lacks))
            yield Difference(
                Conflict.NODE_PART_MISSING,
                uuid,
                f"Placement counts nothing of this host for instance {uuid} but GPUs; it lacks "
                f"{amounts}, which are reserved",
                "nova-gpu verify --repair sets its allocation; if Placement refuses that, other "
                "instances have taken the room: move one of them away",
                True,
            )


def _strange_allocations(state: HostState) -> Iterator[Difference]:
    """Yield the allocations from the host's groups whose consumer is no instance of this host."""
    for provider_uuid, provider in (state.providers or {}).items():
        for consumer, amount in sorted(state.allocated(provider_uuid).items()):
            holder = state.holders.get(consumer)
            text = f"Placement counts {amount} GPUs of {provider.name} for {consumer}"
            guest = (state.guests or {}).get(consumer)
            if holder in (Consumer.DELETED, Consumer.ENDED_MOVE):
                # The guest of a deleted instance may still run, and then has the cards.
                safe = state.guests is not None and guest is None
                remedy = "nova-gpu verify --repair removes it"
                if not safe:
                    remedy = f"virsh destroy and virsh undefine {consumer} first, if libvirt has it"
                yield Difference(
                    Conflict.ALLOCATION_LEFT, consumer, f"{text}, {holder.value}", remedy, safe
                )
            elif holder in (Consumer.ELSEWHERE, Consumer.UNKNOWN):
                yield Difference(
                    Conflict.ALLOCATION_UNKNOWN,
                    consumer,
                    f"{text}, {holder.value}",
                    "if openstack server show and openstack server migration list know nothing of "
                    f"it: openstack resource provider allocation delete {consumer}"
                    if holder is Consumer.UNKNOWN
                    else "openstack resource provider allocation unset --provider with this group",
                )


def _inventories(state: HostState) -> Iterator[Difference]:
    """Yield the groups whose inventory in Placement is too small or too large.

    Yield nothing while an instance here has a task or a move in progress, and skip a group while a
    consumer of it is on its way to this host.
    """
    if state.records is None or len(_settled(state)) < len(state.held()):
        return
    for provider_uuid, provider in (state.providers or {}).items():
        free, allocated = _free(provider, state), state.allocated(provider_uuid)
        if free is None or Consumer.ON_ITS_WAY in map(state.holders.get, allocated):
            continue
        noun = _NOUNS[provider.resource_class]
        counted = ((uuid, it) for uuid, own in state.records.counted.items() for it, _ in own)
        held = collections.Counter(uuid for uuid, it in counted if it == provider_uuid)
        # A consumer counts with its allocation or its devices, whichever is more: where these
        # differ, that is a contradiction of its own.
        due = (collections.Counter(allocated) | held).total()
        more = provider.total - provider.reserved - due
        if (there_are := free + held.total()) > provider.total:
            yield Difference(
                Conflict.INVENTORY_SHORT,
                provider.name,
                f"{there_are} {noun} can be given, and Placement counts {provider.total} of "
                f"{provider.name}",
                _REMEDY,
            )
        elif more > free:
            yield Difference(
                Conflict.INVENTORY_EXCEEDS,
                provider.name,
                f"Placement offers {more} more {noun} of {provider.name}, and {free} are free",
                _REMEDY,
            )


def _free(provider: GroupProvider, state: HostState) -> int | None:
    """Return how many devices of a group new instances could get, ``None`` if that is unknown."""
    if provider.resource_class != names.RESOURCE_CLASS:
        return state.vgpus_free.get(provider.name)
    if state.cards is None or state.guests is None:
        return None
    by_guests = _NONE.union(*(guest.every for guest in state.guests.values()))
    return len(provider.fit - by_guests.union(*state.held().values()))


def _vgpus(state: HostState) -> Iterator[Difference]:
    """Yield the vGPUs of domains that the host lacks, and vGPUs that no instance has any more.

    Yield nothing unless libvirt, Nova's database and sysfs all answered.
    """
    if state.guests is None or state.records is None or state.made is None:
        return
    held, settled = state.held(), _settled(state)
    for uuid in settled:
        named = device.slots(state.guests.get(uuid, DomainDevices()).every)
        for slot in sorted(named - state.made.get(uuid, frozenset())):
            yield Difference(
                Conflict.VGPU_MISSING,
                str(slot),
                f"vGPU {slot} of instance {uuid} is in its domain and not on the host",
                f"openstack server reboot --hard {uuid} makes it again (of a stopped one: "
                "start); a MIG instance you make again before that",
            )
    for uuid, slots in state.made.items():
        if (uuid in held and uuid not in settled) or uuid in state.records.returning:
            continue
        by_guest = state.guests.get(uuid, DomainDevices()).every
        for slot in sorted(slots - held.get(uuid, _NONE) - by_guest):
            yield Difference(
                Conflict.VGPU_LEFT,
                str(slot),
                f"vGPU {slot} was made for {uuid}, which no longer has it",
                "nova-compute removes it within a period; see its log, and whether it runs",
            )


def _is_here(item: Device, state: HostState) -> bool:
    at = {slot.parent for slot in device.slots([item])}
    return item in (state.cards or ()) or bool(at & state.functions)


def _words(cards: Collection[Device]) -> str:
    return ", ".join(sorted(map(str, cards))) or "no GPU"
