# SPDX-License-Identifier: Apache-2.0
"""The passport of a card: what hosts have seen of it, known by its identifiers in any slot.

Each host has a record of each card that it has or had. The passport is put together from the
records of all hosts when it is read, so that no host changes what another one has written::

    {"host": "compute1", "product": "10de:2335", "ids": {"pcie": "00-04-4b-ff-fe-12-34-56"},
     "place": "0000:88:00.0", "seen": 1796082011.2,
     "faults": {"quarantine": "Xid 79"}, "marks": {"firmware": "96.00.89.00.01"},
     "events": [[1796082011.2, "0000:88:00.0", "place", ""], ...],
     "folded": {"clean": [312, 1796000000.0]}}

Two records are of one card if they share an identifier and no other one contradicts. A card without
an identifier is known by its host and address, and by the records of that host alone.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from nova_gpu.core import exception, printable
from nova_gpu.core.model import PciAddress

# The kinds of events that are no faults and no marks: the card is at an address since then, has
# gone, its last fault is over, and what an operator wrote
PLACE, GONE, BACK, NOTE, ACCEPTED = "place", "gone", "back", "note", "accepted"
NOTES = (NOTE, ACCEPTED)
# The faults by their source's name in lower case (:class:`nova_gpu.core.unavailability.Source`)
QUARANTINE, TEST_FAILED = "quarantine", "test failed"
FAULTS = (QUARANTINE, TEST_FAILED, "bus", "nvml", "xid", "repair")
# What is compared with the last look
MARKS = ("driver", "firmware", "test", "clean")
_KINDS = frozenset((PLACE, GONE, BACK, *NOTES, *FAULTS, *MARKS))

# How many events a record has at most, and how long their texts are
MOST_EVENTS = 200
MOST_OF_A_TEXT = 200
# After every time that a clock says, and before the last one that datetime knows
_NEVER = 1e11
WINDOW_S = 30 * 86400.0
# Apart in a record, so that no two of its events are the same
_APART_S = 0.001

# The kind of the identifier of a card that has none
BY_PLACE = "place"
_ID_KIND = re.compile(r"[a-z]{1,16}")
# Also safe as a part of a file's name
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{3,63}")
# What boards without a serial number say instead of one
_NO_ID = re.compile(r"[0.:-]+|[fF.:-]+|n-?a|none|null|unknown|not.?(available|supported)", re.I)
_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:-]{0,252}")
_PRODUCT = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")

Ids = Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Event:
    """What a host has seen of a card. ``time`` is since 1970."""

    time: float
    host: str
    address: str
    kind: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Folded:
    """The oldest events of one kind, of which only the number is left, and the time of the last."""

    count: int
    until: float


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """What a host sees of one card now. ``faults`` and ``marks`` are texts by kind.

    ``is_held``: whether new instances do not get the card, for whatever reason. Then its last fault
    is not over.
    """

    address: str
    ids: Ids
    faults: Mapping[str, str]
    marks: Mapping[str, str]
    is_held: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """What one host has seen of one card.

    ``place`` is the card's address there, ``None`` if it has gone, ``seen`` when it was last there.
    ``faults`` and ``marks`` are those of the last look; a mark that is unknown then stays.
    """

    host: str
    product: str
    ids: Ids
    place: str | None
    seen: float
    faults: Mapping[str, str]
    marks: Mapping[str, str]
    events: tuple[Event, ...] = ()
    folded: Mapping[str, Folded] = dataclasses.field(default_factory=dict)


def identifiers(texts: Mapping[str, str]) -> Ids:
    """Return the identifiers among *texts*, by kind, without those that no card is known by."""
    return {k: v for k, v in texts.items() if k != BY_PLACE and _is_id(k, v)}


def _is_id(kind: str, text: str) -> bool:
    is_whole = _ID_KIND.fullmatch(kind) and _ID.fullmatch(text)
    return bool(is_whole) and not _NO_ID.fullmatch(text)


def by_place(address: str, product: str) -> Ids:
    return {BY_PLACE: f"{address}-{product}"}


def _is_place(text: str) -> bool:
    address, _, product = text.partition("-")
    return str(PciAddress.parse(address)) == address and bool(_PRODUCT.fullmatch(product))


def name(record: Record) -> str:
    """Return the name of the record's file, which never changes: that of its first identifier."""
    kind, text = next(iter(record.ids.items()))
    return f"{prefix(kind, text)}{record.host}.json"


def prefix(kind: str, text: str) -> str:
    """Return how the names of all files of cards with this identifier begin."""
    return f"{kind}-{text}@"


def is_host(host: str) -> bool:
    """Return whether this can be the name of a host, which is a part of names of files."""
    return _HOST.fullmatch(host) is not None


def new(host: str, product: str, ids: Ids, now: float) -> Record:
    return Record(host, product, ids, None, now, {}, {})


def after(record: Record, look: Look, now: float) -> Record:
    """Return *record* after a look at its card."""
    faults, marks = _short(look.faults), _short(look.marks)
    if look.is_held and not faults:
        faults = dict(record.faults)
    news = []
    if record.place != look.address:
        news.append((PLACE, ""))
    # The numbers in the text of a fault that stays may rise; of a quarantine it is another Xid.
    news += [
        (kind, text)
        for kind, text in sorted(faults.items())
        if kind not in record.faults or (kind == QUARANTINE and record.faults[kind] != text)
    ]
    if record.faults and not faults:
        news.append((BACK, ""))
    news += [(kind, text) for kind, text in sorted(marks.items()) if record.marks.get(kind) != text]
    known = dataclasses.replace(
        record,
        ids={**record.ids, **look.ids},
        place=look.address,
        faults=faults,
        marks={**record.marks, **marks},
    )
    return _with(known, news, now)


def _short(texts: Mapping[str, str]) -> dict[str, str]:
    return {kind: printable.printable(text, MOST_OF_A_TEXT) for kind, text in texts.items()}


def gone(record: Record, now: float) -> Record:
    """Return *record* after a look at the host that no longer has its card.

    Its faults stay: a card that is brought to another host does not come back without them.
    """
    return dataclasses.replace(_with(record, [(GONE, "")], now), place=None)


def noted(record: Record, kind: str, text: str, now: float) -> Record:
    """Return *record* with a note of an operator, of one of ``NOTES``."""
    return _with(record, [(kind, text)], now)


def _with(record: Record, news: Iterable[tuple[str, str]], now: float) -> Record:
    """Return *record* with new events; a clock that was set back moves none before the last."""
    events, where = list(record.events), record.place or ""
    last = max([e.time for e in events] + [f.until for f in record.folded.values()], default=0.0)
    for kind, text in news:
        last = max(now, last + _APART_S)
        short = printable.printable(text, MOST_OF_A_TEXT)
        events.append(Event(last, record.host, where, kind, short))
    return _fold(dataclasses.replace(record, events=tuple(events), seen=now))


def _fold(record: Record) -> Record:
    """Return *record* with ``MOST_EVENTS`` at most, the oldest of the most frequent kind folded."""
    left: dict[str, list[Event]] = {}
    for event in sorted(record.events, reverse=True):
        left.setdefault(event.kind, []).append(event)
    folded = dict(record.folded)
    for _ in range(len(record.events) - MOST_EVENTS):
        kind = max(left, key=lambda kind: len(left[kind]))
        before = folded.get(kind, Folded(0, 0.0))
        folded[kind] = Folded(before.count + 1, left[kind].pop().time)
    events = tuple(sorted(itertools.chain.from_iterable(left.values())))
    return dataclasses.replace(record, events=events, folded=folded)


def merged(one: Record, other: Record) -> Record:
    """Return the record of which *one* and *other* are copies of one host.

    The last look is that of the later copy, of copies as old that of *one*.
    """
    newer, older = (one, other) if one.seen >= other.seen else (other, one)
    folded = {
        kind: max(
            (copy.folded[kind] for copy in (one, other) if kind in copy.folded),
            key=lambda item: (item.until, item.count),
        )
        for kind in sorted({*one.folded, *other.folded})
    }
    events = (
        event
        for event in {*one.events, *other.events}
        if event.kind not in folded or event.time > folded[event.kind].until
    )
    known = dataclasses.replace(
        newer,
        # Those of *one* first: they name its file.
        ids={**one.ids, **older.ids, **newer.ids},
        marks={**older.marks, **newer.marks},
        events=tuple(sorted(events)),
        folded=folded,
    )
    return _fold(known)


@dataclasses.dataclass(frozen=True, slots=True)
class Passport:
    """All that the hosts know of one card; ``remarks`` say what is doubtful about that."""

    records: tuple[Record, ...]
    remarks: tuple[str, ...] = ()

    @property
    def product(self) -> str:
        return self.records[0].product

    @property
    def ids(self) -> Ids:
        return {kind: text for record in self.records for kind, text in record.ids.items()}

    @property
    def events(self) -> list[Event]:
        return sorted({event for record in self.records for event in record.events})

    @property
    def folded(self) -> Mapping[str, int]:
        """How many more events of a kind there were before."""
        counts: Counter[str] = Counter()
        for record in self.records:
            counts.update({kind: item.count for kind, item in record.folded.items()})
        return counts


def together(records: Collection[Record]) -> list[Passport]:
    """Return the passports of all cards in *records*, whatever their order.

    An identifier that cards have which differ in another one, or in their product, tells nothing.
    """
    copies: dict[tuple[str, str], Record] = {}
    for record in sorted(records, key=lambda item: (-item.seen, repr(item))):
        key = record.host, name(record)
        copies[key] = merged(copies[key], record) if key in copies else record
    whole = [copies[key] for key in sorted(copies)]
    by_id: dict[tuple[str, ...], list[Record]] = {}
    for record in whole:
        for item in _keys(record):
            by_id.setdefault(item, []).append(record)
    doubtful = {
        item
        for item, alike in by_id.items()
        if any(_contradict(a, b) for a, b in itertools.combinations(alike, 2))
    }
    passports: list[Passport] = []
    for group in _joined(whole, {k: v for k, v in by_id.items() if k not in doubtful}):
        alone = [[record] for record in group]
        is_one = not any(_contradict(a, b) for a, b in itertools.combinations(group, 2))
        for part in [group] if is_one else alone:
            remarks = [
                f"{kind} {text} is also that of another card"
                for kind, text, *_ in sorted({k for r in part for k in _keys(r)})
                if not is_one or (kind, text) in doubtful
            ]
            here = [f"{r.host} at {r.place}" for r in part if r.place]
            if len(here) > 1:
                remarks.append(f"it is said to be at several places: {', '.join(here)}")
            passports.append(Passport(tuple(part), tuple(remarks)))
    return passports


def _keys(record: Record) -> list[tuple[str, ...]]:
    """Return the record's identifiers; that of a place is one within its host only."""
    return [
        (kind, text, record.host) if kind == BY_PLACE else (kind, text)
        for kind, text in record.ids.items()
    ]


def _contradict(one: Record, other: Record) -> bool:
    common = one.ids.keys() & other.ids.keys()
    return one.product != other.product or any(one.ids[k] != other.ids[k] for k in common)


def _joined(
    records: Sequence[Record], by_id: Mapping[tuple[str, ...], Sequence[Record]]
) -> list[list[Record]]:
    """Return *records* in groups of those that share an identifier, directly or by others."""
    groups = {id(record): [record] for record in records}
    for alike in by_id.values():
        for record in alike[1:]:
            one, other = groups[id(alike[0])], groups[id(record)]
            if one is not other:
                one += other
                groups.update(dict.fromkeys(map(id, other), one))
    return list({id(group): sorted(group, key=repr) for group in groups.values()}.values())


def returns(events: Iterable[Event], now: float) -> int:
    """Return how often the card came back from a fault in ``WINDOW_S``, here or on another host.

    The count begins anew when an operator has accepted the card.
    """
    count, is_faulty, where = 0, False, ""
    for event in sorted(events):
        if event.kind == ACCEPTED:
            count = 0
        elif event.kind in FAULTS:
            is_faulty, where = True, event.host
        elif event.kind == BACK or (event.kind == PLACE and event.host != where):
            count += is_faulty and event.time > now - WINDOW_S
            is_faulty = False
    return count


def when(time: float) -> str:
    return datetime.datetime.fromtimestamp(time, datetime.UTC).isoformat(" ", "seconds")


def lines(passport: Passport) -> list[str]:
    """Return the passport as lines of text."""
    ids = ", ".join(f"{kind} {text}" for kind, text in passport.ids.items())
    return [
        f"{ids} ({passport.product})",
        *(f"  {remark}" for remark in passport.remarks),
        *(f"  before: {count} x {kind}" for kind, count in sorted(passport.folded.items())),
        *(
            f"  {when(e.time)}  {e.host}  {e.address}  {e.kind}  {e.text}".rstrip()
            for e in passport.events
        ),
    ]


def dump(record: Record) -> dict[str, Any]:
    """Return *record* for JSON."""
    return {
        **{k: getattr(record, k) for k in ("host", "product", "place", "seen")},
        **{k: dict(getattr(record, k)) for k in ("ids", "faults", "marks")},
        "events": [[e.time, e.address, e.kind, e.text] for e in record.events],
        "folded": {kind: [item.count, item.until] for kind, item in record.folded.items()},
    }


def parse(content: Any) -> Record:
    """Return the record in *content*, of JSON: another host, or a person, may have written it.

    :raises ValueError: if it is no record
    """
    try:
        host, place = content["host"], content["place"]
        ids = {str(kind): str(text) for kind, text in content["ids"].items()}
        if not is_host(host) or not ids or not _PRODUCT.fullmatch(content["product"]):
            raise ValueError("its host, its product or its identifiers")
        for kind, text in ids.items():
            if not (_is_place(text) if kind == BY_PLACE else _is_id(kind, text)):
                raise ValueError("its identifiers")
        if place is not None:
            PciAddress.parse(place)
        record = Record(
            host,
            content["product"],
            ids,
            place,
            _time(content["seen"]),
            _texts(content["faults"], FAULTS),
            _texts(content["marks"], MARKS),
            tuple(_event(host, *item) for item in content["events"]),
            {str(k): Folded(int(n), _time(t)) for k, (n, t) in content["folded"].items()},
        )
        if not record.folded.keys() <= _KINDS:
            raise ValueError("its folded events")
        return _fold(record)
    except (LookupError, TypeError, AttributeError, exception.InvalidPciAddress) as error:
        raise ValueError(f"it is no record of a card: {error!r}") from error
    except ValueError as error:
        raise ValueError(f"it is no record of a card: {error}") from error


def _time(value: Any) -> float:
    number = float(value)
    if not 0 <= number < _NEVER:
        raise ValueError("a time")
    return number


def _texts(content: Any, kinds: Collection[str]) -> dict[str, str]:
    if not content.keys() <= set(kinds):
        raise ValueError("its faults or marks")
    return {k: printable.printable(str(t), MOST_OF_A_TEXT) for k, t in content.items()}


def _event(host: str, time: Any, address: Any, kind: Any, text: Any) -> Event:
    if kind not in _KINDS or not isinstance(text, str):
        raise ValueError("an event")
    where = str(PciAddress.parse(address)) if address else ""
    return Event(_time(time), host, where, kind, printable.printable(text, MOST_OF_A_TEXT))
