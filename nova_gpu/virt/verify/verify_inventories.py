# SPDX-License-Identifier: Apache-2.0
"""Where Placement has more of a group than there is, or less."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterator, Mapping

from nova_gpu.core import names
from nova_gpu.virt.verify.sources import Cards, Difference, Holder, Instance, Kind, Provider, Truths

_NONE: Cards = frozenset()
_REMEDY = (
    "nova-compute corrects it within a period, or where somebody else wrote it within "
    "[compute]resource_provider_association_refresh; see its log, and whether it runs"
)


def of_cards(truths: Truths) -> Iterator[Difference]:
    """The differences of groups of whole cards"""
    for provider_uuid, provider in (truths.providers or {}).items():
        if provider.resource_class == names.RESOURCE_CLASS and truths.cards is not None:
            yield from _of_cards(provider_uuid, provider, truths)


def of_vgpus(truths: Truths) -> Iterator[Difference]:
    """The differences of groups of vGPUs, while each vGPU is somebody's"""
    for provider_uuid, provider in (truths.providers or {}).items():
        if provider.resource_class == names.VGPU_RESOURCE_CLASS:
            yield from _of_vgpus(provider_uuid, provider, truths)


def _of_cards(provider_uuid: str, provider: Provider, truths: Truths) -> Iterator[Difference]:
    if len(provider.fit) > provider.total:
        yield Difference(
            Kind.INVENTORY_SHORT,
            provider.name,
            f"{len(provider.fit)} GPUs can be given, and Placement counts {provider.total} "
            f"of {provider.name}",
            _REMEDY,
        )
    if truths.guests is None or truths.instances is None:
        return
    free = provider.fit - _used(truths)
    more = provider.total - provider.reserved - _due(provider_uuid, provider, truths.instances)
    if more > len(free) and _all_settled(truths, provider.allocated):
        yield Difference(
            Kind.INVENTORY_EXCEEDS,
            provider.name,
            f"Placement would give {more} GPUs more of {provider.name}, and {len(free)} are free",
            _REMEDY,
        )


def _of_vgpus(provider_uuid: str, provider: Provider, truths: Truths) -> Iterator[Difference]:
    """How many more there can be is known where all is known of who has which."""
    free = truths.vgpus_free.get(provider.name)
    if free is None or truths.instances is None or not _all_settled(truths, provider.allocated):
        return
    left = provider.total - _due(provider_uuid, provider, truths.instances)
    if free > left:
        yield Difference(
            Kind.INVENTORY_SHORT,
            provider.name,
            f"{free} vGPUs more can be given, and Placement has {max(left, 0)} left of "
            f"{provider.name}",
            _REMEDY,
        )
    elif left - provider.reserved > free:
        yield Difference(
            Kind.INVENTORY_EXCEEDS,
            provider.name,
            f"Placement would give {left - provider.reserved} vGPUs more of {provider.name}, and "
            f"{free} can be made",
            _REMEDY,
        )


def _due(provider_uuid: str, provider: Provider, instances: Mapping[str, Instance]) -> int:
    """What Placement counts, and what it should count besides: that is a difference of its own."""
    due = collections.Counter(provider.allocated)
    for uuid, instance in instances.items():
        has = sum(its_provider == provider_uuid for its_provider, _ in instance.counted)
        due[uuid] = max(due[uuid], has)
    return due.total()


def _all_settled(truths: Truths, consumers: Collection[str]) -> bool:
    instances = truths.instances or {}
    known = all(each.settled for each in instances.values())
    return known and all(
        truths.holders.get(consumer) is not Holder.ON_ITS_WAY for consumer in consumers
    )


def _used(truths: Truths) -> Cards:
    by_guests = _NONE.union(*(guest.cards for guest in (truths.guests or {}).values()))
    return by_guests.union(*(each.cards for each in (truths.instances or {}).values()))
