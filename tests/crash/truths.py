# SPDX-License-Identifier: Apache-2.0
"""The four truths about a host's GPUs, and where they contradict each other.

Sysfs says which cards there are, libvirt which guest has which, Nova's database which instance, and
Placement how many. A fifth is what the compute service would give the next one who asks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

Cards = frozenset[str]
_NONE: Cards = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Guest:
    """A domain of libvirt's and the cards whose nodes or functions it names."""

    running: bool
    cards: Cards


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """``cards``: ``instance.resources``; ``kept``: the other side of a move that has not ended."""

    vm_state: str
    task_state: str | None
    asked: int
    cards: Cards
    kept: Cards = _NONE

    @property
    def settled(self) -> bool:
        return self.task_state is None and self.vm_state == "active"


@dataclasses.dataclass(frozen=True, slots=True)
class HostState:
    """``guests`` and ``instances`` by uuid; ``allocated``: Placement's numbers, by instance, those
    of its migrations included, or by consumer where that is no instance's.
    """

    cards: Cards
    guests: Mapping[str, Guest]
    instances: Mapping[str, Instance]
    allocated: Mapping[str, int]
    total: int
    reserved: int
    free: Cards


def differences(truths: HostState) -> list[str]:
    """Every broken promise, in words; nothing where all is well."""
    return [
        *_shared(truths),
        *_without(truths),
        *_leaked(truths),
        *_offered(truths),
        *_miscounted(truths),
    ]


def _shared(truths: HostState) -> Iterator[str]:
    yield from _twice("guests", {uuid: each.cards for uuid, each in truths.guests.items()})
    yield from _twice(
        "instances", {uuid: each.cards | each.kept for uuid, each in truths.instances.items()}
    )


def _twice(who: str, cards_by_uuid: Mapping[str, Cards]) -> Iterator[str]:
    for card in sorted(_all(cards_by_uuid.values())):
        having = sorted(uuid for uuid, cards in cards_by_uuid.items() if card in cards)
        if len(having) > 1:
            yield f"shared: {card} is of the {who} {', '.join(having)}"


def _without(truths: HostState) -> Iterator[str]:
    """No guest is ACTIVE without its GPUs."""
    for uuid, instance in truths.instances.items():
        guest = truths.guests.get(uuid, Guest(False, _NONE))
        if not instance.settled:
            continue
        if not guest.running:
            yield f"without: {uuid} is ACTIVE and its guest does not run"
        if guest.cards != instance.cards or len(guest.cards) != instance.asked:
            yield (
                f"without: {uuid} asked for {instance.asked}, has {_words(instance.cards)} in the "
                f"database and {_words(guest.cards)} in its domain"
            )


def _leaked(truths: HostState) -> Iterator[str]:
    for uuid, guest in truths.guests.items():
        if uuid not in truths.instances:
            yield f"leaked: the domain {uuid} of no instance has {_words(guest.cards)}"
    for consumer, amount in truths.allocated.items():
        if amount and consumer not in truths.instances:
            yield f"leaked: Placement counts {amount} for {consumer}, which is no instance"
    lost = truths.cards - truths.free - _used(truths)
    if len(lost) > truths.reserved:
        yield f"lost: {_words(lost)} are nobody's, not offered, and {truths.reserved} are reserved"


def _offered(truths: HostState) -> Iterator[str]:
    if wrong := truths.free & _used(truths):
        yield f"offered: {_words(wrong)} are in use and would be given to the next one"
    if wrong := (_used(truths) | truths.free) - truths.cards:
        yield f"offered: {_words(wrong)} are not on the host"
    if truths.total != len(truths.cards):
        yield f"offered: {truths.total} in Placement, {len(truths.cards)} on the host"


def _miscounted(truths: HostState) -> Iterator[str]:
    for uuid, instance in truths.instances.items():
        amount = truths.allocated.get(uuid, 0)
        has = len(instance.cards | instance.kept)
        if amount != has and (instance.settled or amount < has):
            yield f"miscounted: {uuid} has {has} in the database, {amount} in Placement"


def _used(truths: HostState) -> Cards:
    by_guests = _all(guest.cards for guest in truths.guests.values())
    return by_guests | _all(each.cards | each.kept for each in truths.instances.values())


def _all(cards: Iterable[Cards]) -> Cards:
    return _NONE.union(*cards)


def _words(cards: Cards) -> str:
    return " ".join(sorted(cards)) or "none"
