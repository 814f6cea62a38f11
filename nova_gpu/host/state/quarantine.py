# SPDX-License-Identifier: Apache-2.0
"""Quarantine: cards that new instances do not get until an operator releases them.

Each quarantined card has one file, its entry, named after the card's address::

    0000:88:00.0.json
    {"address": "0000:88:00.0", "product": "10de:2335", "reason": "...", "remedy": "...",
     "since": "2026-11-21T15:40:11+00:00", "cleaning": false, "until_boot": null, "asks": "reset",
     "seen": {"identity": {"nvidia": "GPU-4a2b..."}, "addresses": ["0000:88:00.0"],
              "boot_id": "1f0c..."}}

The entry applies to the card that ``seen`` identifies, in whatever slot that is now
(:mod:`nova_gpu.host.pci.identity`). If the card has no identifier, the entry applies to the card at
the address as long as all cards of the product are at their former addresses; after that it applies
to all cards of the product that may be the quarantined one. An entry without ``seen``, as older
releases and operators write it, applies to a card of the product at the address. Only older
releases wrote ``cleaning`` (true): that the card had to be cleaned.

Another folder has such files for cards that could not be bound (:class:`BindFailures`). What reads
or changes a folder raises OSError if it cannot.

"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oslo_utils import timeutils

from nova_gpu.core import exception
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons, Repair, Source, Unavailable
from nova_gpu.host.pci import identity
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files

LOG = logging.getLogger(__name__)

# How long new instances do not get a card that could not be bound to vfio-pci. The cause may end at
# any time, and no event reports its end.
_RETRY_AFTER_S = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """The identity of a card at the time of a record, by which the card is recognised later.

    ``identity`` are its identifiers by kind, which may be none. ``addresses`` are those of all
    cards of its product on the host, ``boot_id`` is that of the host.
    """

    identity: identity.Identity
    addresses: tuple[str, ...]
    boot_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """The entry of one quarantined card.

    ``product`` is as ``10de:2335``, ``None`` for any; ``since`` is in ISO 8601, with its offset. An
    entry with the boot id ``until_boot`` ends with that boot of the host. ``cleaning`` is true only
    in entries of older releases. ``asks`` is the step of a repair that the fault asks for, after
    which an extension may end the quarantine (the value of a :class:`Repair`).
    """

    address: PciAddress
    product: str | None
    reason: str
    remedy: str
    since: str
    cleaning: bool = False
    until_boot: str | None = None
    seen: Seen | None = None
    asks: str | None = None

    @property
    def way_out(self) -> str:
        """The remedy, and what ends the quarantine after it."""
        end = f"run nova-gpu quarantine release {self.address}"
        end += ", or boot the host" if self.until_boot else ""
        return f"{self.remedy}; then {end}" if self.remedy else end


# Reads the identifiers of cards; by default with this process's rights
Identities = Callable[[Iterable[GPU]], Mapping[PciAddress, identity.Identity]]


def entry(
    card: GPU,
    reason: str,
    remedy: str,
    *,
    until_boot: str | None = None,
    seen: Seen | None = None,
    asks: Repair | None = None,
) -> Entry:
    """Return a new entry that quarantines *card* once :func:`put` has written it."""
    now = timeutils.utcnow(with_timezone=True).isoformat(timespec="seconds")
    step = asks.value if asks else None
    return Entry(card.address, card.product.key, reason, remedy, now, False, until_boot, seen, step)


def _identities(
    cards: Iterable[GPU], roots: Roots, identities: Identities | None
) -> Mapping[PciAddress, identity.Identity]:
    return identities(cards) if identities else {c.address: identity.read(c, roots) for c in cards}


def see(
    cards: Iterable[GPU], roots: Roots, identities: Identities | None = None
) -> dict[PciAddress, Seen]:
    """Return the present identities of *cards* by address.

    Return ``{}`` if the boot id or the addresses of all cards of their products cannot be read.
    """
    gpus = tuple(cards)
    products = {gpu.product.key for gpu in gpus}
    try:
        addresses = {product: identity.addresses(product, roots) for product in products}
        own, boot_id = _identities(gpus, roots, identities), roots.boot_id()
    except OSError:
        return {}
    seen = {}
    for gpu in gpus:
        # The card's own address too if it has left the bus, because it may return there.
        there = addresses[gpu.product.key] | {str(gpu.address)}
        seen[gpu.address] = Seen(own[gpu.address], tuple(sorted(there)), boot_id)
    return seen


def unavailable(
    folder: pathlib.Path, cards: Iterable[GPU], roots: Roots, identities: Identities | None = None
) -> dict[PciAddress, Reasons]:
    """Return why those of *cards* that are in quarantine are not available, by address.

    If the folder of entries cannot be read, none of the cards is available.
    """
    gpus = tuple(cards)
    try:
        entries = load(folder)
    except OSError as error:
        unread = f"its quarantine entry cannot be read: {error}"
        remedy = f"make {folder} readable for nova-compute"
        # None of them is known to be in quarantine.
        return {card.address: (Unavailable(unread, remedy, Source.SERVICE),) for card in gpus}
    reasons_by_card = {}
    for record in entries.values():
        if record.cleaning:
            continue
        text = f"since {record.since}: {record.reason}"
        about = cards_of(record, gpus, roots, identities)
        for card in about:
            if card.address == record.address or record.seen is None or len(about) == 1:
                former = "" if card.address == record.address else f"as {record.address} "
                reason = f"it is in quarantine {former}{text}"
                asks = Repair(record.asks) if record.asks else None
                reasons_by_card[card.address] = _reasons(reason, record.way_out, asks)
            else:
                remedy = f"{record.remedy}; " if record.remedy else ""
                reasons = _reasons(
                    f"{record.address} was in quarantine {text}; {remedy}GPUs of this "
                    "product have other addresses now, and nova-gpu cannot tell which it is",
                    f"find that card, then run nova-gpu quarantine release {record.address}",
                )
                reasons_by_card.setdefault(card.address, reasons)
    return reasons_by_card


def _reasons(reason: str, remedy: str, asks: Repair | None = None) -> Reasons:
    return (Unavailable(reason, remedy, Source.QUARANTINE, asks=asks),)


def cards_of(
    record: Entry, cards: Iterable[GPU], roots: Roots, identities: Identities | None = None
) -> list[GPU]:
    """Return those of *cards*, all of the host, to which *record* applies or may apply."""
    alike = [card for card in cards if record.product in (None, card.product.key)]
    there = [card for card in alike if card.address == record.address]
    if record.seen is None or record.product is None or not alike:
        return there
    known = _identities(alike, roots, identities)
    verdicts = {c.address: identity.same(record.seen.identity, known[c.address]) for c in alike}
    if is_it := [card for card in alike if verdicts[card.address]]:
        return is_it
    maybe = [card for card in alike if verdicts[card.address] is None]
    if _are_where_they_were(record.product, record.seen, roots):
        return [card for card in maybe if card in there]
    return maybe


def _are_where_they_were(product: str, seen: Seen, roots: Roots) -> bool:
    """Return whether the cards of the product are at the addresses in *seen*, false if unknown.

    Within one boot of the host, some may be missing, because no other card takes their place.
    """
    try:
        now, boot_id = identity.addresses(product, roots), roots.boot_id()
    except OSError:
        return False
    then = frozenset(seen.addresses)
    return now <= then if boot_id == seen.boot_id else now == then


def follow(
    folder: pathlib.Path, cards: Iterable[GPU], roots: Roots, identities: Identities | None = None
) -> list[tuple[PciAddress, PciAddress]]:
    """Rename the entries of cards whose address has changed; return pairs of old and new address.

    Call this when nova-compute starts.
    """
    gpus, entries = tuple(cards), load(folder)
    homes = {}
    for record in entries.values():
        about = cards_of(record, gpus, roots, identities)
        if len(about) == 1 and about[0].address != record.address:
            homes[record.address] = about[0].address
    left = {
        old: dataclasses.replace(entries[old], address=new)
        for old, new in homes.items()
        if new not in entries or new in homes
    }
    moved = [(old, new.address) for old, new in left.items()]
    while left:
        # Prefer an entry whose new place is free. In a cycle none is; overwritten entries are in
        # memory.
        free = (old for old, new in left.items() if new.address not in left)
        old = next(free, next(iter(left)))
        put(folder, left.pop(old))
    for old, _ in moved:
        if old not in {new for _, new in moved}:
            release(folder, old)
    return moved


def is_about(record: Entry, card: GPU, own: identity.Identity | None = None) -> bool:
    """Return whether *card*, which is at the address of *record* now, may be its card.

    Return false only if their products or identifiers differ.

    :param own: the identifiers of *card*, if they are known
    """
    if record.product not in (None, card.product.key):
        return False
    return not (record.seen and own and identity.same(record.seen.identity, own) is False)


def to_clean(folder: pathlib.Path) -> list[PciAddress]:
    """Return the cards whose entries only record that they are not clean, as older releases did."""
    return [record.address for record in load(folder).values() if record.cleaning]


def end_those_of_former_boots(folder: pathlib.Path, boot_id: str) -> list[Entry]:
    """Remove the entries that ended with an earlier boot than *boot_id*, and return them."""
    over = [
        record
        for record in load(folder).values()
        if record.until_boot and record.until_boot != boot_id
    ]
    for record in over:
        release(folder, record.address)
    return over


def load(folder: pathlib.Path) -> dict[PciAddress, Entry]:
    """Return all entries in *folder*, by address; none if the folder does not exist."""
    entries = {}
    for address in files.cards(folder):
        with contextlib.suppress(FileNotFoundError):
            entries[address] = _read(files.of_card(folder, address), address)
    return entries


def put(folder: pathlib.Path, new: Entry) -> None:
    """Write the entry *new* to its file in *folder*, in place of a former entry for its address.

    :raises OSError: if it cannot be written; then the former entry stays
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    content = {**dataclasses.asdict(new), "address": str(new.address)}
    files.write_json(files.of_card(folder, new.address), content, mode=0o644, indent=1)


def release(folder: pathlib.Path, address: PciAddress) -> Entry | None:
    """Remove and return the entry for *address*, ``None`` if there was none."""
    path = files.of_card(folder, address)
    try:
        record = _read(path, address)
    except FileNotFoundError:
        return None
    files.remove(path)
    return record


class BindFailures:
    """The cards that could not be bound to vfio-pci; new instances do not get them for 5 minutes.

    A new claim of such a card would fail again, while other cards may be free. The list is in
    memory, and is empty when the service starts.

    :param folder: the folder with a file for each card on the list; only the commands read it
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._until: dict[PciAddress, tuple[float, Unavailable]] = {}

    def add(self, card: GPU, error: exception.BindingFailed) -> None:
        reason = Unavailable(error.fact, error.remedy, Source.BINDING)
        self._until[card.address] = time.monotonic() + _RETRY_AFTER_S, reason
        try:
            put(self._folder, entry(card, error.fact, error.remedy))
        except OSError as failure:
            LOG.warning(
                "nova-gpu list does not show the failed binding of GPU %s, because its file cannot "
                "be written: %s",
                card.address,
                failure,
            )

    def unavailable(self) -> Mapping[PciAddress, Reasons]:
        now = time.monotonic()
        return {a: (reason,) for a, (until, reason) in dict(self._until).items() if until > now}

    def forget(self, address: PciAddress) -> None:
        if self._until.pop(address, None) is not None:
            self._remove(address)

    def prune(self) -> None:
        """Remove the files of cards that new instances get again, and of an earlier service."""
        with contextlib.suppress(OSError):
            for address in load(self._folder).keys() - self.unavailable():
                self._remove(address)

    def _remove(self, address: PciAddress) -> None:
        with contextlib.suppress(OSError):  # tried again in the next period
            release(self._folder, address)


def unbound(folder: pathlib.Path, cards: Iterable[GPU]) -> dict[PciAddress, Reasons]:
    """Return which of *cards* could not be bound, by the files of :class:`BindFailures`.

    The commands call it. The result is empty if the folder cannot be read.
    """
    try:
        entries = load(folder)
    except OSError:
        return {}
    return {
        card.address: (
            Unavailable(
                f"it could not be bound for a guest at {record.since}, and new instances do not "
                f"get it for {_RETRY_AFTER_S / 60:g} minutes from then: {record.reason}",
                record.remedy,
                Source.BINDING,
            ),
        )
        for card in cards
        if (record := entries.get(card.address))
    }


def _read(path: pathlib.Path, address: PciAddress) -> Entry:
    """Return the entry in the file; for an invalid one, an entry for any card at *address*."""
    try:
        content = files.read_json(path)
        texts = {name: content[name] for name in ("reason", "remedy", "since")}
        product = content["product"]
        if not all(isinstance(text, str) for text in (*texts.values(), product or "")):
            raise TypeError("reason, remedy, since and product must be texts")
        until_boot = content.get("until_boot")
        if until_boot is not None and not isinstance(until_boot, str):
            raise TypeError("until_boot must be a boot id")
        cleaning = content["cleaning"] is True
        seen, asks = parse_seen(content.get("seen")), content.get("asks")
        if asks not in (None, *(step.value for step in Repair)):
            raise ValueError(f"no step of a repair is called {asks}")
        lasts = {"cleaning": cleaning, "until_boot": until_boot, "seen": seen, "asks": asks}
        return Entry(address, product, **texts, **lasts)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = f"{path} cannot be understood: {error!r}"
        return Entry(address, None, reason, "check the card", "an unknown time")


def parse_seen(content: Any) -> Seen | None:
    """Parse ``seen``, the identity of a card in an entry or a proof; ``None`` stays ``None``.

    :raises LookupError, TypeError: if it is invalid
    """
    if content is None:
        return None
    kinds, there, boot_id = (content[name] for name in ("identity", "addresses", "boot_id"))
    if not isinstance(kinds, dict) or not isinstance(there, list):
        raise TypeError("seen must have identity (an object) and addresses (a list)")
    if not all(isinstance(text, str) for text in (*kinds, *kinds.values(), *there, boot_id)):
        raise TypeError("the values in seen must be texts")
    return Seen(kinds, tuple(there), boot_id)
