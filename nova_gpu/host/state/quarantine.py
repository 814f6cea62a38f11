# SPDX-License-Identifier: Apache-2.0
"""Quarantine: cards that new instances do not get until an operator releases them.

There is one file per card. It is one JSON object, named after the card's address::

    0000:88:00.0.json
    {"address": "0000:88:00.0", "product": "10de:2335", "reason": "...", "remedy": "...",
     "since": "2026-11-21T15:40:11+00:00", "cleaning": false, "until_boot": null,
     "seen": {"identity": {"nvidia": "GPU-4a2b..."}, "addresses": ["0000:88:00.0"],
              "boot_id": "1f0c..."}}

It applies to the card, not to the slot: to the card that ``seen`` identifies, wherever that is
plugged in now (:mod:`nova_gpu.host.pci.identity`). If the card has no identifier, the entry applies
to the card at the address as long as all cards of the product are at their former addresses, and
otherwise to each card that may be the one. Without ``seen``, as older releases and operators write
it, it applies to the card of the product at the address. An entry that cannot be parsed applies to
the card at the address.

Older releases wrote ``cleaning``, which says only that the card had to be cleaned. Today a card
without a proof that it is clean is cleaned (:mod:`nova_gpu.host.state.proofs`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oslo_utils import timeutils

from nova_gpu.core.availability import Reasons, Source, Unavailable
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.pci import identity
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What identified a card at the time; ``addresses`` are those of all cards of its product."""

    identity: identity.Identity
    addresses: tuple[str, ...]
    boot_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One quarantined card.

    ``product`` is as ``10de:2335``, ``None`` for any; ``since`` is in ISO 8601, with its offset. An
    entry with ``until_boot`` ends when the host's boot id differs from it.
    """

    address: PciAddress
    product: str | None
    reason: str
    remedy: str
    since: str
    cleaning: bool = False
    until_boot: str | None = None
    seen: Seen | None = None


Identities = Callable[[Iterable[GPU]], Mapping[PciAddress, identity.Identity]]


def entry(
    card: GPU,
    reason: str,
    remedy: str,
    *,
    until_boot: str | None = None,
    seen: Seen | None = None,
) -> Entry:
    """Return a new entry about *card* that begins now."""
    now = timeutils.utcnow(with_timezone=True).isoformat(timespec="seconds")
    return Entry(card.address, card.product.key, reason, remedy, now, False, until_boot, seen)


def see(cards: Iterable[GPU], roots: Roots, identities: Identities) -> dict[PciAddress, Seen]:
    """Return the present identities of *cards*.

    Return no identity if the addresses of their products' cards cannot be read.
    """
    gpus = tuple(cards)
    products = {gpu.product.key for gpu in gpus}
    try:
        addresses = {product: identity.addresses(product, roots) for product in products}
        own, boot_id = identities(gpus), roots.boot_id()
    except OSError:
        return {}
    seen = {}
    for gpu in gpus:
        # The card's own address too if it has left the bus, because it may return there.
        there = addresses[gpu.product.key] | {str(gpu.address)}
        seen[gpu.address] = Seen(own[gpu.address], tuple(sorted(there)), boot_id)
    return seen


def unavailable(
    folder: pathlib.Path,
    cards: Iterable[GPU],
    roots: Roots,
    identities: Identities | None = None,
) -> dict[PciAddress, Reasons]:
    """Return the reasons for those of *cards* that are in quarantine.

    If the folder cannot be read, all of them count as in quarantine.

    :param identities: reads the identifiers of cards; by default with this process's rights
    """
    gpus = tuple(cards)
    try:
        entries = load(folder)
    except OSError as error:
        unread = f"whether it is in quarantine cannot be read: {error}"
        return {card.address: _reasons(unread, "mend that") for card in gpus}
    reasons_by_card = {}
    for record in entries.values():
        if record.cleaning:
            continue
        text = f"since {record.since}: {record.reason}"
        about = cards_of(record, gpus, roots, identities)
        for card in about:
            if card.address == record.address or record.seen is None:
                reasons_by_card[card.address] = _reasons(
                    f"it is in quarantine {text}", record.remedy
                )
            elif len(about) == 1:
                reason = f"it is in quarantine as {record.address} {text}"
                reasons_by_card[card.address] = _reasons(reason, record.remedy)
            else:
                reasons = _reasons(
                    f"{record.address} was in quarantine {text}; {record.remedy}; GPUs of this "
                    "product have other addresses now, and nova-gpu cannot tell which it is",
                    f"find it, and then: nova-gpu quarantine release {record.address}",
                )
                reasons_by_card.setdefault(card.address, reasons)
    return reasons_by_card


def _reasons(reason: str, remedy: str) -> Reasons:
    return (Unavailable(reason, remedy, Source.QUARANTINE),)


def cards_of(
    record: Entry, cards: Iterable[GPU], roots: Roots, identities: Identities | None = None
) -> list[GPU]:
    """Return those of the host's *cards* that the entry applies to or may apply to."""
    alike = [card for card in cards if record.product in (None, card.product.key)]
    there = [card for card in alike if card.address == record.address]
    if record.seen is None or record.product is None or not alike:
        return there
    known = identities(alike) if identities else {c.address: identity.read(c, roots) for c in alike}
    verdicts = {c.address: identity.same(record.seen.identity, known[c.address]) for c in alike}
    if is_it := [card for card in alike if verdicts[card.address]]:
        return is_it
    maybe = [card for card in alike if verdicts[card.address] is None]
    if _are_where_they_were(record.product, record.seen, roots):
        return [card for card in maybe if card in there]
    return maybe


def _are_where_they_were(product: str, seen: Seen, roots: Roots) -> bool:
    """Return whether the cards of the product are at their former addresses.

    While the host is up, a card may disappear, but no other one takes its place.
    """
    try:
        now, boot_id = identity.addresses(product, roots), roots.boot_id()
    except OSError:
        return False
    then = frozenset(seen.addresses)
    return now <= then if boot_id == seen.boot_id else now == then


def follow(
    folder: pathlib.Path,
    cards: Iterable[GPU],
    roots: Roots,
    identities: Identities | None = None,
) -> list[tuple[PciAddress, PciAddress]]:
    """Rename the files of cards whose address has changed; return old and new addresses.

    Call this when the service starts.

    :raises OSError: if the folder cannot be read or changed
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
    """Return whether *card*, which is at the entry's address now, is or may be the entry's card.

    :param own: the identifiers of *card*
    """
    if record.product not in (None, card.product.key):
        return False
    return not (record.seen and own and identity.same(record.seen.identity, own) is False)


def forget_cleaning(folder: pathlib.Path) -> None:
    """Remove the entries of older releases that only say that a card had to be cleaned.

    :raises OSError: if the folder cannot be read or changed
    """
    for record in load(folder).values():
        if record.cleaning:
            release(folder, record.address)


def end_those_of_former_boots(folder: pathlib.Path, boot_id: str) -> list[Entry]:
    """Remove the entries that were valid until the next boot of the host, and return them.

    :raises OSError: if the folder cannot be read or changed
    """
    over = [
        record
        for record in load(folder).values()
        if record.until_boot and record.until_boot != boot_id
    ]
    for record in over:
        release(folder, record.address)
    return over


def load(folder: pathlib.Path) -> dict[PciAddress, Entry]:
    """Return all entries of the folder, by address; none if the folder does not exist.

    :raises OSError: if the folder cannot be listed
    """
    entries = {}
    for address in files.cards(folder):
        with contextlib.suppress(FileNotFoundError):
            entries[address] = _read(files.of_card(folder, address), address)
    return entries


def put(folder: pathlib.Path, new: Entry) -> None:
    """Write an entry, replacing any entry with its address; it is written completely or not at all.

    :raises OSError: if it cannot be written
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    content = {**dataclasses.asdict(new), "address": str(new.address)}
    files.write_json(files.of_card(folder, new.address), content, mode=0o644, indent=1)


def release(folder: pathlib.Path, address: PciAddress) -> Entry | None:
    """Remove the card's file; return the entry that it had, ``None`` if there was no file.

    :raises OSError: if it cannot be removed
    """
    path = files.of_card(folder, address)
    try:
        record = _read(path, address)
    except FileNotFoundError:
        return None
    files.remove(path)
    return record


def _read(path: pathlib.Path, address: PciAddress) -> Entry:
    """Return the entry in the file at *path*; an invalid file becomes an entry for any product.

    :raises FileNotFoundError: if the file has been removed meanwhile
    """
    try:
        content = files.read_json(path)
        texts = {name: content[name] for name in ("reason", "remedy", "since")}
        product = content["product"]
        if not all(isinstance(text, str) for text in (*texts.values(), product or "")):
            raise TypeError("text is expected")
        until_boot = content.get("until_boot")
        if until_boot is not None and not isinstance(until_boot, str):
            raise TypeError("a boot id is expected")
        cleaning = content["cleaning"] is True
        seen = parse_seen(content.get("seen"))
        return Entry(address, product, cleaning=cleaning, until_boot=until_boot, seen=seen, **texts)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = f"{path} cannot be understood: {error!r}"
        remedy = f"see what is known of the card, then nova-gpu quarantine release {address}"
        return Entry(address, None, reason, remedy, "an unknown time")


def parse_seen(content: Any) -> Seen | None:
    """Parse the identity of a card in an entry or a proof, ``None`` without one.

    :raises LookupError, TypeError: if :func:`put` did not write it
    """
    if content is None:
        return None
    kinds, there, boot_id = (content[name] for name in ("identity", "addresses", "boot_id"))
    if not isinstance(kinds, dict) or not isinstance(there, list):
        raise TypeError("what was seen of the card is expected")
    if not all(isinstance(text, str) for text in (*kinds, *kinds.values(), *there, boot_id)):
        raise TypeError("text is expected")
    return Seen(kinds, tuple(there), boot_id)
