# SPDX-License-Identifier: Apache-2.0
"""Cards that no new instance is given before an operator says so: one file per card.

A file is one JSON object, named after the card's address::

    0000:88:00.0.json
    {"address": "0000:88:00.0", "product": "10de:2335", "reason": "...", "remedy": "...",
     "since": "2026-11-21T15:40:11+00:00", "cleaning": false, "until_boot": null,
     "seen": {"identity": {"nvidia": "GPU-4a2b..."}, "addresses": ["0000:88:00.0"],
              "boot_id": "1f0c..."}}

It is about the card, not the slot: wherever the one that was seen is now, by what tells it from
others of its product (:mod:`nova_gpu.host.pci.identity`). Where nothing does, it is about the one
at the address, as long as the product's cards are where they were; and else about each that it can
be. Without ``seen``, as older releases and operators write it, it is about the card of the product
at the address. What cannot be understood is about whatever is there.

With ``cleaning``, which older releases wrote, it only says that the card was to be cleaned. Now a
card without a proof that it is clean is (:mod:`nova_gpu.host.state.proofs`).
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
    """The facts of the card at the time; ``addresses`` are those of all cards of its product."""

    identity: identity.Identity
    addresses: tuple[str, ...]
    boot_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """``product`` as ``10de:2335``, ``None`` for any; ``since`` in ISO 8601, with its offset.

    With ``until_boot`` it is over when the host's boot id is another than that.
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
    """Return an entry about *card*, from now on."""
    now = timeutils.utcnow(with_timezone=True).isoformat(timespec="seconds")
    return Entry(card.address, card.product.key, reason, remedy, now, False, until_boot, seen)


def see(cards: Iterable[GPU], roots: Roots, identities: Identities) -> dict[PciAddress, Seen]:
    """Return what tells each of *cards* from others.

    Nothing where the host does not tell where those are.
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
        # Its own too, where it has left the bus: it may come back there.
        there = addresses[gpu.product.key] | {str(gpu.address)}
        seen[gpu.address] = Seen(own[gpu.address], tuple(sorted(there)), boot_id)
    return seen


def unavailable(
    folder: pathlib.Path,
    cards: Iterable[GPU],
    roots: Roots,
    identities: Identities | None = None,
) -> dict[PciAddress, Reasons]:
    """Return the *cards* that are in quarantine.

    All of them where the folder cannot be read.

    :param identities: by default what this process can read
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
                    "product have other addresses now, and which one it is cannot be read",
                    f"find it, and then: nova-gpu quarantine release {record.address}",
                )
                reasons_by_card.setdefault(card.address, reasons)
    return reasons_by_card


def _reasons(reason: str, remedy: str) -> Reasons:
    return (Unavailable(reason, remedy, Source.QUARANTINE),)


def cards_of(
    record: Entry, cards: Iterable[GPU], roots: Roots, identities: Identities | None = None
) -> list[GPU]:
    """Return which of the host's *cards* the entry is about or may be about."""
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
    """Return whether the cards of the product are at the addresses that they had.

    While the host is up a card may go away, and no other one comes to be where it was.
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
    """Rename the files of cards with new addresses at service start; return old and new ones.

    :raises OSError: where the folder cannot be read or changed
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
        # One whose place is free. In a circle none is: what is written over is in memory.
        free = (old for old, new in left.items() if new.address not in left)
        old = next(free, next(iter(left)))
        put(folder, left.pop(old))
    for old, _ in moved:
        if old not in {new for _, new in moved}:
            release(folder, old)
    return moved


def is_about(record: Entry, card: GPU, own: identity.Identity | None = None) -> bool:
    """Return whether *card*, at the entry's address now, is the one that was meant, or may be.

    :param own: what tells it from others
    """
    if record.product not in (None, card.product.key):
        return False
    return not (record.seen and own and identity.same(record.seen.identity, own) is False)


def forget_cleaning(folder: pathlib.Path) -> None:
    """Remove the notes by which older releases remembered which cards were to be cleaned.

    :raises OSError: where the folder cannot be read or changed
    """
    for record in load(folder).values():
        if record.cleaning:
            release(folder, record.address)


def end_those_of_former_boots(folder: pathlib.Path, boot_id: str) -> list[Entry]:
    """Take away what was to last until the host has booted, and returns it.

    :raises OSError: where the folder cannot be read or changed
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
    """Read all entries of the folder, by address; a folder that does not exist yet has none.

    :raises OSError: where the folder cannot be listed
    """
    entries = {}
    for address in files.cards(folder):
        with contextlib.suppress(FileNotFoundError):
            entries[address] = _read(files.of_card(folder, address), address)
    return entries


def put(folder: pathlib.Path, new: Entry) -> None:
    """Write an entry in the place of what stood there, at once or not at all.

    :raises OSError: where it cannot be written
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    content = {**dataclasses.asdict(new), "address": str(new.address)}
    files.write_json(files.of_card(folder, new.address), content, mode=0o644, indent=1)


def release(folder: pathlib.Path, address: PciAddress) -> Entry | None:
    """Take the card's file away; return what it said, ``None`` where there was none.

    :raises OSError: where it cannot be removed
    """
    path = files.of_card(folder, address)
    try:
        record = _read(path, address)
    except FileNotFoundError:
        return None
    files.remove(path)
    return record


def _read(path: pathlib.Path, address: PciAddress) -> Entry:
    """Read one entry.

    :raises FileNotFoundError: where it went away meanwhile
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
    """Parse the facts of a card, ``None`` where there are none.

    :raises LookupError, TypeError: where it is not what :func:`put` wrote
    """
    if content is None:
        return None
    kinds, there, boot_id = (content[name] for name in ("identity", "addresses", "boot_id"))
    if not isinstance(kinds, dict) or not isinstance(there, list):
        raise TypeError("what was seen of the card is expected")
    if not all(isinstance(text, str) for text in (*kinds, *kinds.values(), *there, boot_id)):
        raise TypeError("text is expected")
    return Seen(kinds, tuple(there), boot_id)
