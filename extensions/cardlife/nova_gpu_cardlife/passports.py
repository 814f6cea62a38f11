# SPDX-License-Identifier: Apache-2.0
"""The passports of a host's cards: nova-compute writes what its looks show, and commands read it.

Texts of reasons may name what a tenant wrote, such as a process. So only fixed words and numbers of
them get into a passport, and what the card, its driver and the operator's test say.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from oslo_log import log as logging

from nova_gpu import notifications
from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import json_text
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons, Source, Unavailable
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files, proofs, quarantine
from nova_gpu_cardlife import tests_of_cards
from nova_gpu_cardlife.core import passport
from nova_gpu_cardlife.core.passport import Look, Record
from nova_gpu_cardlife.core.verdict import Verdict
from nova_gpu_cardlife.host import passport_files, records
from nova_gpu_cardlife.host.shared_folder import DEADLINE_S, Answer, SharedFolder

LOG = logging.getLogger(__name__)

# How often the folder is read without news, and how soon again after an error
_READ_S, _RETRY_S = 3600.0, 300.0
# How often a record is written only because its card is still there
_SEEN_S = 6 * 3600.0
_XID = re.compile(r"\bits driver reported (Xid \d{1,4})\b")
_VERDICTS = frozenset(verdict.value for verdict in Verdict)
# Their texts are of fixed words and numbers
_TOLD = (Source.BUS, Source.NVML)


def folder() -> pathlib.Path:
    return pathlib.Path(NOVAS.state_path, "gpu-passports")


def of_host(roots: Roots, identities: quarantine.Identities | None) -> Passports:
    """Return the passports of the host's cards.

    :param identities: read the identifiers of cards; ``None`` in commands
    :raises ValueError: in nova-compute, if an option is invalid
    """
    if identities:
        path, _ = CONF.gpu.passport_folder, CONF.gpu.passport_most_returns
        if not os.path.isabs(path):
            text = path or "(not set)"
            raise ValueError(f"[gpu]passport_folder = {text}: it must be an absolute path")
    return Passports(roots, identities)


@dataclasses.dataclass(frozen=True, slots=True)
class _Card:
    """A card that is there now, with what identifies it among the cards of the host."""

    gpu: GPU
    seen: quarantine.Seen
    ids: passport.Ids


class Passports:
    """The records of a host's cards, and those that the operator's folder has of them."""

    def __init__(self, roots: Roots, identities: quarantine.Identities | None) -> None:
        self._roots, self._identities = roots, identities
        self._folder, self._shared = folder(), SharedFolder(CONF.gpu.passport_folder)
        self._own: dict[str, Record] = {}
        self._met: dict[str, Record] = {}
        self._is_loaded = False
        # By address: the name of the record, and what is there now
        self._at: dict[PciAddress, str] = {}
        self._cards: Mapping[PciAddress, _Card] | None = None
        # The records that are not on the disk, or in the folder, as they are here
        self._unsaved: set[str] = set()
        self._unsent: set[str] = set()
        # Those whose copy in the folder is known here, so that it may be replaced
        self._known: set[str] = set()
        # The new cards whose history is not read yet
        self._awaited: set[str] = set()
        self._is_first = False
        self._requested: Mapping[str, Record] = {}
        self._sent: Mapping[str, Record] = {}
        # When the folder is to be read again, and until when it is left alone after an error
        self._next_at = self._left_until = 0.0
        self._errors: Mapping[str, str] = {}
        self._warnings: set[str] = set()
        self._own_reasons: Mapping[PciAddress, Unavailable] = {}

    def load(self) -> None:
        """Import nothing: all that is needed later was imported."""

    def step(self, *_: Any, **__: Any) -> Mapping[PciAddress, Reasons]:
        """Do nothing to idle cards."""
        return {}

    def kept_back(self, cards: Collection[GPU]) -> Mapping[PciAddress, Reasons]:
        try:
            if self._identities:
                self._load()
                self._collect()
                self._identify(cards)
            else:
                self._own, _ = passport_files.read(self._folder, passport_files.OWN)
                self._met, _ = passport_files.read(self._folder, passport_files.MET)
                places = {name: record.place for name, record in self._own.items()}
                self._at = {PciAddress.parse(a): name for name, a in places.items() if a}
        except OSError as error:
            return self._unread(cards, error)
        self._own_reasons = self._judge()
        return {address: (reason,) for address, reason in self._own_reasons.items()}

    def _unread(self, cards: Iterable[GPU], error: OSError) -> dict[PciAddress, Reasons]:
        """Return the reasons against cards whose history on this disk cannot be read."""
        if not self._identities:  # the folder may be closed to the command's user
            return {}
        self._tell(f"Cannot read the passports of this host's GPUs: {error}")
        if not CONF.gpu.passport_most_returns:
            return {}
        remedy = f"make {self._folder} readable for nova-compute"
        reason = Unavailable(f"its passport cannot be read: {error}", remedy, Source.GATE)
        return {card.address: (reason,) for card in cards}

    def _load(self) -> None:
        if self._is_loaded:
            return
        is_new = passport_files.make(self._folder)
        self._own, errors = passport_files.read(self._folder, passport_files.OWN)
        self._met, _ = passport_files.read(self._folder, passport_files.MET)
        for name, error in errors.items():
            self._tell(f"{self._folder}/{passport_files.OWN}/{name} is not read: {error}")
        self._unsent = set(self._own)
        # When passports are switched on, the cards that are there stay offered.
        self._is_first = is_new
        self._is_loaded = True

    def _identify(self, cards: Collection[GPU]) -> None:
        """Find the record of each card, in nova-compute a new one for a new card."""
        seen = quarantine.see(cards, self._roots, self._identities)
        if cards and not seen:
            self._cards = None  # the cards of the last look stay
            return
        ids = {a: passport.identifiers(item.identity) for a, item in seen.items()}
        counts = Counter(item for own in ids.values() for item in own.items())
        # What two cards of the host have, such as a board's serial number, tells neither.
        ids = {a: {k: v for k, v in i.items() if counts[k, v] == 1} for a, i in ids.items()}
        self._cards = {c.address: _Card(c, seen[c.address], ids[c.address]) for c in cards}
        before, self._at = self._at, {}
        for address, card in self._cards.items():
            name = self._find(card) if card.ids else self._former(before.get(address), card)
            self._at[address] = name or self._new(card)
        self._is_first = False

    def _new(self, card: _Card) -> str:
        """Return the name of a new record, of a card that may have records in the folder."""
        address, product = str(card.gpu.address), card.gpu.product.key
        ids = card.ids or passport.by_place(address, product)
        record = passport.new(CONF.host, product, ids, time.time())
        name = passport.name(record)
        if name not in self._own:
            self._own[name] = record
            self._next_at = 0.0
            if not self._is_first and CONF.gpu.passport_most_returns:
                self._awaited.add(name)
        return name

    def _find(self, card: _Card) -> str | None:
        """Return the record with an identifier of the card, best that of its present address."""
        matches = [
            name
            for name, record in self._own.items()
            if record.product == card.gpu.product.key
            and card.ids.items() & record.ids.items()
            and all(record.ids.get(k, v) == v for k, v in card.ids.items())
        ]
        here = str(card.gpu.address)
        return min(matches, key=lambda name: (self._own[name].place != here, name), default=None)

    def _former(self, name: str | None, card: _Card) -> str | None:
        """Return the record of the last look at a card that shows no identifier now."""
        record = self._own.get(name or "")
        return name if record and record.product == card.gpu.product.key else None

    def _judge(self) -> dict[PciAddress, Unavailable]:
        if not (most := CONF.gpu.passport_most_returns):
            return {}
        reasons = {
            address: Unavailable(
                f"its history is being read in {self._shared.path}",
                f"that takes a period, or {DEADLINE_S:g} s if the folder does not answer",
                Source.GATE,
            )
            for address, name in self._at.items()
            if name in self._awaited
        }
        by_record = {
            passport.name(record): card
            for card in passport.together([*self._own.values(), *self._met.values()])
            for record in card.records
        }
        for address, name in self._at.items():
            card = by_record.get(name)
            count = passport.returns(card.events, time.time()) if card else 0
            if count > most:
                reasons[address] = Unavailable(
                    f"it came back from faults {count} times in 30 days, here or on other hosts",
                    f"replace it, or run nova-gpu passport {address} --accept REASON",
                    Source.GATE,
                )
        return reasons

    def saw(self, reasons: Mapping[PciAddress, Reasons]) -> None:
        """Write what the look shows, in nova-compute, after :meth:`kept_back`."""
        if not self._identities or self._cards is None:
            return
        now = time.time()
        for address, name in self._at.items():
            card = self._cards[address]
            own = [r for r in reasons.get(address, ()) if r != self._own_reasons.get(address)]
            look = Look(str(address), card.ids, faults(own), self._marks(card), bool(own))
            self._take(name, passport.after(self._own[name], look, now), card.gpu)
        here = set(self._at.values())
        for name, record in tuple(self._own.items()):
            if record.place is not None and name not in here:
                self._take(name, passport.gone(record, now))
        self._take_notes(now)
        self._save()
        self._sync()

    def _marks(self, card: _Card) -> dict[str, str]:
        marks, address = records.versions(card.gpu, self._roots), card.gpu.address
        clean = pathlib.Path(NOVAS.state_path, "gpu-clean")
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            if proofs.holds(clean, address, card.gpu, card.seen):
                proof = files.read_json(files.of_card(clean, address))
                marks["clean"] = f"{proof['by']} at {proof['since']}"
        with contextlib.suppress(OSError, ValueError):
            tested = records.read(tests_of_cards.folder(), address) if CONF.gpu.card_test else None
            if tested and tested.record.state in _VERDICTS:
                text = f"{tested.record.state} at {passport.when(tested.record.since)}"
                marks["test"] = ": ".join(filter(None, (text, tested.record.text)))
        return marks

    def _take(self, name: str, new: Record, card: GPU | None = None) -> None:
        """Take in what a look has changed, and send a notification of each new event."""
        before = self._own[name]
        is_same = dataclasses.replace(new, seen=before.seen) == before
        if is_same and 0 <= new.seen - before.seen < _SEEN_S:
            return
        self._own[name] = new
        self._unsaved.add(name)
        self._unsent.add(name)
        for event in sorted(set(new.events) - set(before.events)):
            known = ", ".join(f"{kind} {text}" for kind, text in new.ids.items())
            notifications.emit(
                notifications.Event(
                    notifications.EventType.PASSPORT,
                    count=1,
                    host=event.host,
                    addresses=(event.address,),
                    product_id=new.product,
                    product=card.product.name if card else None,
                    architecture=card.product.architecture if card else None,
                    reason=f"{known}: {event.kind} {event.text}".strip(),
                )
            )

    def _take_notes(self, now: float) -> None:
        names = {str(address): name for address, name in self._at.items()}
        try:
            for path, address, kind, text in passport_files.notes(self._folder):
                if name := names.get(address):
                    self._take(name, passport.noted(self._own[name], kind, text, now))
                    # Before the note is removed; a crash between the two repeats it.
                    passport_files.write(self._folder, passport_files.OWN, name, self._own[name])
                    files.remove(path)
        except OSError as error:
            self._tell(f"Cannot take in a note about a GPU: {error}")

    def _save(self) -> None:
        for name in sorted(self._unsaved):
            try:
                passport_files.write(self._folder, passport_files.OWN, name, self._own[name])
            except OSError as error:
                self._tell(f"Cannot write the passport of a GPU, will retry: {error}")
                return
            self._unsaved.discard(name)

    def _sync(self) -> None:
        """Let the other process write what is new, and read what others wrote of these cards."""
        now = time.monotonic()
        write = {name: self._own[name] for name in self._unsent & self._known}
        if self._shared.is_busy or now < self._left_until or not (write or now >= self._next_at):
            return
        prefixes = {name.removesuffix(".json") for name in self._own}
        for name in self._at.values():
            ids = self._own[name].ids.items()
            prefixes |= {passport.prefix(k, v) for k, v in ids if k != passport.BY_PLACE}
        try:
            texts = {name: json.dumps(passport.dump(record)) for name, record in write.items()}
            self._shared.begin(texts, prefixes)
        except OSError as error:
            self._tell(f"Cannot start the process that writes passports: {error}")
            self._awaited.clear()
            return
        self._sent, self._requested = write, dict(self._own)
        self._next_at = now + _READ_S

    def _collect(self) -> None:
        answer = self._shared.outcome()
        if "" in (self._errors if answer is None else answer.errors):
            self._awaited.clear()  # each has waited for a period
        if answer is None:
            return
        self._awaited -= self._requested.keys()
        if answer.errors.keys() & {"", *self._own}:
            self._left_until = time.monotonic() + _RETRY_S
            self._next_at = 0.0
        self._report(answer)
        for name, text in answer.read.items():
            try:
                self._meet(name, passport.parse(json_text.parse(text)))
            except ValueError as error:
                self._tell(f"{self._shared.path}/{name} is not read: {error}")
        if "" not in answer.errors:
            # One that is no record is replaced: each host writes its own files only.
            self._known |= self._requested.keys() - answer.errors.keys()
        for name in answer.written:
            if self._sent.get(name) == self._own.get(name):
                self._unsent.discard(name)

    def _meet(self, name: str, record: Record) -> None:
        """Take in a record of the folder: a copy of an own one, or another host's."""
        if passport.name(record) != name:
            raise ValueError("it has the name of another record")
        if record.host != CONF.host:
            if self._met.get(name) != record:
                self._met[name] = record
                try:
                    passport_files.write(self._folder, passport_files.MET, name, record)
                except OSError as error:
                    self._tell(f"Cannot write the history of a GPU: {error}")
            return
        own = self._own.get(name)
        # One that was not on this disk is not of the last look.
        now = passport.merged(own, record) if own else dataclasses.replace(record, place=None)
        if now != own:
            self._own[name] = now
            self._unsaved.add(name)
        if now != record:
            self._unsent.add(name)

    def _report(self, answer: Answer) -> None:
        """Log each error of the folder once while it lasts, and that the last one is over."""
        before, self._errors = self._errors, answer.errors
        if before and not answer.errors:
            LOG.info("The folder %s of GPUs' passports answers again", self._shared.path)
        for name, error in answer.errors.items() - before.items():
            LOG.warning(
                "%s ([gpu]passport_folder): %s. nova-compute goes on without it, and keeps what it "
                "has to write in %s.",
                f"{self._shared.path}/{name}" if name else self._shared.path,
                error,
                self._folder,
            )

    def _tell(self, text: str) -> None:
        if text not in self._warnings:
            LOG.warning("%s", text)
        self._warnings.add(text)


def faults(reasons: Iterable[Unavailable]) -> dict[str, str]:
    """Return the faults among the *reasons* against a card, without the words of tenants."""
    matches: dict[str, str] = {}
    for reason in reasons:
        kind = reason.source.name.lower()
        kind = passport.TEST_FAILED if reason.source is Source.TEST else kind
        if kind in passport.FAULTS:
            xid = _XID.search(reason.reason)
            text = reason.reason if reason.source in _TOLD else xid[1] if xid else ""
            matches.setdefault(kind, text)
    return matches
