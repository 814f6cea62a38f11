# SPDX-License-Identifier: Apache-2.0
"""Where Placement has more of a group than there is, or less."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping

from nova_gpu.core import names
from nova_gpu.virt.verify.sources import Cards, Difference, Holder, Instance, Kind, Provider, Truths

_NONE: Cards = frozenset()
_NOUNS = {names.RESOURCE_CLASS: "GPUs", names.VGPU_RESOURCE_CLASS: "vGPUs"}
_REMEDY = (
    "nova-compute corrects it within a period, or where somebody else wrote it within "
    "[compute]resource_provider_association_refresh; see its log, and whether it runs"
)


def differences(truths: Truths) -> Iterator[Difference]:
    """The differences of all groups of which it is known who has what"""
    for provider_uuid, provider in (truths.providers or {}).items():
        free = _free(provider, truths)
        if free is None or truths.instances is None or not _all_settled(truths, provider):
            continue
        noun = _NOUNS[provider.resource_class]
        held = _held(provider_uuid, truths.instances)
        more = provider.total - provider.reserved - _due(provider.allocated, held)
        if (there_are := free + held.total()) > provider.total:
            yield Difference(
                Kind.INVENTORY_SHORT,
                provider.name,
                f"{there_are} {noun} can be given, and Placement counts {provider.total} of "
                f"{provider.name}",
                _REMEDY,
            )
        elif more > free:
            yield Difference(
                Kind.INVENTORY_EXCEEDS,
                provider.name,
                f"Placement would give {more} {noun} more of {provider.name}, and {free} are free",
                _REMEDY,
            )


def _free(provider: Provider, truths: Truths) -> int | None:
    """How many of a group can be given, ``None`` where that is not known"""
    if provider.resource_class != names.RESOURCE_CLASS:
        return truths.vgpus_free.get(provider.name)
    if truths.cards is None or truths.guests is None:
        return None
    by_guests = _NONE.union(*(guest.cards for guest in truths.guests.values()))
    used = by_guests.union(*(each.cards for each in (truths.instances or {}).values()))
    return len(provider.fit - used)


def _held(provider_uuid: str, instances: Mapping[str, Instance]) -> collections.Counter[str]:
    """How many of the group each instance has"""
    counted = ((uuid, each) for uuid, has in instances.items() for each, _ in has.counted)
    return collections.Counter(uuid for uuid, each in counted if each == provider_uuid)


def _due(allocated: Mapping[str, int], held: collections.Counter[str]) -> int:
    """What Placement counts, and what it should count besides: that is a difference of its own."""
    return (collections.Counter(allocated) | held).total()


def _all_settled(truths: Truths, provider: Provider) -> bool:
    """Whether nobody is on the way to or from the group"""
    return all(each.settled for each in (truths.instances or {}).values()) and all(
        truths.holders.get(each) is not Holder.ON_ITS_WAY for each in provider.allocated
    )
