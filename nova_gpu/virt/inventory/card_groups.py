# SPDX-License-Identifier: Apache-2.0
"""The groups of a host's whole cards, updated by each inspection of the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

from nova_gpu.core import release, unavailability
from nova_gpu.core.model import GPU, DeliveryMode, GPUGroup, GroupKey, PciAddress, Product
from nova_gpu.core.scheduling import stats
from nova_gpu.core.topology import topology
from nova_gpu.core.unavailability import Reasons, Scope, Source, Unavailable

GONE = Unavailable("it is no longer on the PCI bus", "", Source.BUS, Scope.ALL)
REPLACED = Unavailable("another product is at its address now", "", Source.BUS, Scope.ALL)
NOT_FOUND = Unavailable(
    "it was assigned to an instance but is not found on this host", "", Source.BUS, Scope.ALL
)
_UNSIZED = Unavailable(
    "its memory is not known, and that of others of its product is",
    "see nvidia-smi -q, or say it with [gpu]product",
    Source.HOST,
)

CardGroups = Mapping[GroupKey, GPUGroup]


def offered(
    gpus: Iterable[GPU],
    before: CardGroups,
    mode: DeliveryMode,
    unavailable: Mapping[PciAddress, Reasons],
) -> CardGroups:
    """Return the groups of this host's whole cards after an inspection that found *gpus*.

    A card of a former group stays in that group when it vanishes or has a reason against it,
    because an instance may have it. A new card is left out if the host prevents its use. A new card
    that is faulty itself is included, so that Placement shows it as reserved.
    """
    by_address = {gpu.address: gpu for gpu in gpus}
    groups: dict[GroupKey, GPUGroup] = {}
    sized = {gpu.product.key for gpu in by_address.values() if gpu.product.memory_mib}
    for gpu in by_address.values():
        key = group_key(gpu, mode)
        known = _group_of(before, key, gpu.address) is not None
        reasons = unavailable.get(gpu.address, ())
        if known or not unavailability.of_host(reasons):
            if gpu.product.memory_mib is None and gpu.product.key in sized:
                reasons = (*reasons, _UNSIZED)
            groups[key] = _with(groups.get(key), key, gpu, reasons)
    for key, group in before.items():
        for address, gpu in group.gpus.items():
            if _group_of(groups, key, address) is not None:
                continue
            reason = REPLACED if address in by_address else GONE
            groups[key] = _with(groups.get(key), key, gpu, (reason,))
    return groups


def including(groups: CardGroups, key: GroupKey, address: PciAddress) -> CardGroups:
    """Return *groups* with the card at *address*, which an instance has, in the group *key*.

    A card that is not in the group yet is added as unavailable: the inspection did not find it.
    """
    groups = keeping(groups, key, address)
    if key in groups and address in groups[key].gpus:
        return groups
    group = groups.get(key)
    gpu = missing(key, address) if group is None else GPU(address, group.product, class_code=0)
    return {**groups, key: _with(group, key, gpu, (NOT_FOUND,))}


def keeping(groups: CardGroups, key: GroupKey, address: PciAddress) -> CardGroups:
    """Return *groups* with the card at *address*, which an instance has in *key*, moved to there.

    So it stays in its provider while ``[gpu]product`` offers its board apart, or no longer does.
    """
    other = _group_of(groups, key, address)
    if other in (None, key):
        return groups
    group = groups[other]
    own = _with(groups.get(key), key, group.gpus[address], group.unavailable.get(address, ()))
    return {**_without(groups, other, address), key: own}


def _group_of(groups: CardGroups, key: GroupKey, address: PciAddress) -> GroupKey | None:
    """Return *key*, or that of another board or none, whose group has the card at *address*."""
    keys = (key, *(other for other in groups if other._replace(board=key.board) == key))
    return next((k for k in keys if k in groups and address in groups[k].gpus), None)


def _without(groups: CardGroups, key: GroupKey, address: PciAddress) -> dict[GroupKey, GPUGroup]:
    group, rest = groups[key], {other: groups[other] for other in groups if other != key}
    gpus = [gpu for gpu in group.gpus.values() if gpu.address != address]
    for gpu in gpus:
        rest[key] = _with(rest.get(key), key, gpu, group.unavailable.get(gpu.address, ()))
    return rest


def missing(key: GroupKey, address: PciAddress) -> GPU:
    """Return a GPU object with only an address and a product id, for a card that is missing."""
    return GPU(address, Product(key.vendor_id, key.product_id), class_code=0)


def reserving(groups: CardGroups, reasons: Mapping[PciAddress, Reasons]) -> CardGroups:
    """Return *groups* with *reasons* added to each card's reasons against it, as the first ones."""
    reserved = {}
    for key, group in groups.items():
        own = {address: reasons[address] for address in reasons if address in group.gpus}
        unavailable = unavailability.merge(own, group.unavailable)
        reserved[key] = dataclasses.replace(group, unavailable=unavailable)
    return reserved


def report(
    card_groups: CardGroups,
    hypervisor_type: str,
    free: Collection[PciAddress],
    reserved: stats.Reserved = stats.NOTHING,
    divided: stats.Divided = stats.UNDIVIDED,
    room: Callable[[Collection[PciAddress]], Mapping[int, int]] = lambda cards: {},
    beside: Callable[[Collection[GPU]], tuple[int, ...]] = lambda cards: (),
) -> str:
    """Return the text that reports this host's GPUs to the scheduler.

    :param free: the cards that a new instance could get now
    :param room: return how many guests could get a set of the given free cards, by the set's size,
        as :meth:`nova_gpu.virt.card_sets.Sets.room`
    :param beside: return how many of the given free cards are near one free PCI device, as
        :meth:`nova_gpu.virt.inventory.neighbours.Neighbours.beside_free`
    """
    gpu_groups = card_groups.values()
    groups = tuple(
        stats.GroupStats(
            product=key.product,
            architecture=group.product.architecture,
            mode=key.mode,
            total=len(group.gpus),
            model=group.product.name,
            memory_mib=group.product.memory_mib,
            islands=topology.islands(group.gpus.values()),
            partitions=tuple(room(group.gpus.keys())),
        )
        for key, group in card_groups.items()
    )
    left = [[gpu for gpu in group.gpus.values() if gpu.address in free] for group in gpu_groups]
    near = tuple(map(beside, left))
    sets = tuple(tuple(room(group.gpus.keys() & free).items()) for group in gpu_groups)
    return stats.dumps(
        stats.Report(
            stats.HostStats(hypervisor_type, groups),
            tuple(map(topology.cells, left)),
            reserved,
            divided,
            free_partitions=sets if any(sets) else None,
            near=near if any(map(any, near)) else None,
            release=release.running(),
            nodes=tuple(topology.by_node(group.gpus.values(), free) for group in gpu_groups),
        )
    )


def group_key(gpu: GPU, mode: DeliveryMode) -> GroupKey:
    return GroupKey.of_whole(gpu.product, mode)


def _with(group: GPUGroup | None, key: GroupKey, gpu: GPU, reasons: Reasons) -> GPUGroup:
    group = group or GPUGroup(key, gpu.product, {})
    product = group.product.completed_by(gpu.product)
    # Cards of one product id may differ in memory; the group reports the smallest. A card whose
    # memory is unknown, such as a dead one, is unavailable if that of others is known.
    sizes = [product.memory_mib for product in (group.product, gpu.product) if product.memory_mib]
    gpus = {**group.gpus, gpu.address: gpu}
    product = dataclasses.replace(
        product, memory_mib=min(sizes, default=None), name=_name(product, gpus.values())
    )
    unavailable = unavailability.merge(group.unavailable, {gpu.address: reasons})
    return dataclasses.replace(group, product=product, gpus=gpus, unavailable=unavailable)


def _name(product: Product, gpus: Iterable[GPU]) -> str | None:
    """Return the name of a group: all names of its cards, if boards of several are one product.

    Where NVML names the cards, those that it does not know are dead, and do not count: they have
    the name of the built-in table.
    """
    named = [gpu for gpu in gpus if gpu.product.name]
    known = [gpu for gpu in named if gpu.uuid] or named
    names = {gpu.product.name for gpu in known if gpu.product.name}
    return " / ".join(sorted(names)) or product.name
