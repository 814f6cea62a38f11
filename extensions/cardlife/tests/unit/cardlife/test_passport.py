# SPDX-License-Identifier: Apache-2.0
"""Passports of cards that move, break and come back, put together in every order"""

from __future__ import annotations

import dataclasses
import itertools
import json
import unittest

from nova_gpu_cardlife.core import passport
from nova_gpu_cardlife.core.passport import Event, Folded, Look, Record

H200, H100 = "10de:2335", "10de:2330"
ONE, TWO = "0000:03:00.0", "0000:d8:00.0"
DSN, UUID = {"pcie": "00-04-4b-ff-fe-12-34-56"}, {"nvidia": "GPU-4a2b"}
DAY = 86400.0
NOW = 1796082011.0


def look(
    address: str = ONE, *, held: bool = False, ids: passport.Ids = DSN, marks=None, **faults: str
) -> Look:
    return Look(address, ids, faults, marks or {}, held or bool(faults))


def record(host: str, *looks: Look | None, at: float = NOW, product: str = H200) -> Record:
    """What a host saw in a row, an hour between; ``None``: the card has gone"""
    first = next(item for item in looks if item)
    made = passport.new(host, product, first.ids, at)
    for number, item in enumerate(looks):
        when = at + number * 3600
        made = passport.after(made, item, when) if item else passport.gone(made, when)
    return made


def kinds(made: Record) -> list[str]:
    return [event.kind for event in made.events]


class ObservingTest(unittest.TestCase):
    def test_differences_are_events(self) -> None:
        bus, xid = look(bus="8 fatal"), look(quarantine="Xid 79")
        rows = (
            ((look(), look()), ["place"]),
            ((look(), look(TWO)), ["place", "place"]),
            ((look(), None), ["place", "gone"]),
            ((look(), None, look()), ["place", "gone", "place"]),
            ((look(), bus, bus), ["place", "bus"]),
            ((look(), bus, look(bus="9 fatal")), ["place", "bus"]),  # a number that rises
            ((look(), bus, look()), ["place", "bus", "back"]),
            ((look(), bus, look(held=True), look()), ["place", "bus", "back"]),
            ((look(), bus, look(held=True), bus), ["place", "bus"]),
            ((look(), bus, look(held=True)), ["place", "bus"]),
            ((look(), xid, look(quarantine="Xid 48")), ["place", "quarantine", "quarantine"]),
            ((look(), look(held=True), look()), ["place"]),
            ((look(), bus, None, look()), ["place", "bus", "gone", "place", "back"]),
            ((look(marks={"driver": "1"}), look(), look(marks={"driver": "1"})), 2),
            ((look(marks={"driver": "1"}), look(marks={"driver": "2"})), 3),
        )
        for looks, expected in rows:
            seen = kinds(record("a", *looks))
            self.assertEqual(expected, len(seen) if isinstance(expected, int) else seen, looks)

    def test_a_clock_that_is_set_back(self) -> None:
        made = record("a", look())
        for then in (NOW - 9 * DAY, 0.0, NOW):
            made = passport.after(made, look(bus="1"), then)
            made = passport.after(made, look(), then)
        self.assertEqual(["place", *["bus", "back"] * 3], kinds(made))
        self.assertEqual(sorted(made.events), list(made.events))
        self.assertEqual(7, len(set(made.events)))
        self.assertEqual(made, passport.parse(json.loads(json.dumps(passport.dump(made)))))

    def test_texts_are_bounded_and_printable(self) -> None:
        made = record("a", look(bus="\x1b[2J" + "x" * 999), look(marks={"test": "a\nb"}))
        for event in made.events:
            self.assertTrue(event.text.isprintable())
            self.assertLessEqual(len(event.text), passport.MOST_OF_A_TEXT)
        self.assertEqual(made, passport.after(made, look(marks={"test": "a\nb"}), made.seen))

    def test_the_most_frequent_events_are_folded(self) -> None:
        made = record("a", look(), look(bus="1"), look())
        for number in range(1000):
            made = passport.after(made, look(marks={"clean": f"reset {number}"}), NOW + number)
        self.assertEqual(passport.MOST_EVENTS, len(made.events))
        self.assertEqual({"place", "bus", "back", "clean"}, set(kinds(made)))
        self.assertEqual(1000, made.folded["clean"].count + kinds(made).count("clean"))
        self.assertEqual("reset 999", made.events[-1].text)
        self.assertLess(len(json.dumps(passport.dump(made))), 1 << 17)


class IdentifierTest(unittest.TestCase):
    def test_what_no_card_is_known_by(self) -> None:
        garbage = (
            *("", "0", "0000000000", "00-00-00-00-00-00-00-00", "N/A", "n-a", "None", "unknown"),
            *("ff-ff-ff-ff-ff-ff-ff-ff", "Not Supported", "../../etc/passwd", "a/b/c/d", "..", "."),
            *("abc\n1234", "abcd\x00", "x" * 65, "12 34 56", "@@@@", "ümläut", "-abcd", "abc@host"),
        )
        for text in garbage:
            self.assertEqual({}, passport.identifiers({"serial": text}), text)
        for kind in ("place", "../x", "", "Serial"):
            self.assertEqual({}, passport.identifiers({kind: "1234567"}), kind)
        self.assertEqual(DSN | UUID, passport.identifiers(DSN | UUID))

    def test_a_file_is_in_its_folder(self) -> None:
        self.assertEqual("pcie-00-04-4b-ff-fe-12-34-56@a.json", passport.name(record("a", look())))
        without = record("a", look(ids=passport.by_place(ONE, H200)))
        self.assertEqual(f"place-{ONE}-{H200}@a.json", passport.name(without))
        for host in ("a/b", "..", "", ".a", "a b", "x" * 300, "a@b"):
            self.assertFalse(passport.is_host(host), host)

    def test_a_foreign_file_that_is_no_record(self) -> None:
        good = passport.dump(record("a", look(bus="1")))
        wrong = (
            *({"host": "a/b"}, {"host": 1}, {"ids": {}}, {"ids": {"pcie": "../../x"}}, {"ids": 1}),
            *({"ids": {"place": "../x"}}, {"place": "slot"}, {"seen": -1}, {"seen": "x"}),
            *({"seen": 1e300}, {"product": "x"}, {"faults": {"x": ""}}, {"marks": {"x": ""}}),
            *({"events": [[1]]}, {"events": [[1, ONE, "x", ""]]}, {"events": [[1, ONE, "bus", 1]]}),
            *({"events": [[1, "x", "bus", ""]]}, {"folded": {"x": [1, 1]}}, {"folded": {"bus": 1}}),
            *({"faults": []}, {"events": None}),
        )
        for change in wrong:
            self.assertRaises(ValueError, passport.parse, good | change)
        for content in (None, [], "x", {}, good | {"folded": {"bus": [1, "x"]}}):
            self.assertRaises(ValueError, passport.parse, content)
        many = [[i, ONE, "bus", "\x1b"] for i in range(9999)]
        parsed = passport.parse(good | {"events": many})
        self.assertEqual(passport.MOST_EVENTS, len(parsed.events))
        self.assertTrue(all(event.text.isprintable() for event in parsed.events))


class TogetherTest(unittest.TestCase):
    def cards(self, *records: Record) -> list[list[str]]:
        """The hosts of each card; the same for every order and with duplicates"""
        answers = {repr(passport.together(order)) for order in itertools.permutations(records)} | {
            repr(passport.together([*records, *records]))
        }
        self.assertEqual(1, len(answers))
        return [[r.host for r in card.records] for card in passport.together(records)]

    def test_which_records_are_of_one_card(self) -> None:
        other = {"pcie": "00-04-4b-ff-fe-99-99-99"}
        both = DSN | UUID
        rows = (
            ((("a", DSN), ("b", DSN)), [["a", "b"]]),
            ((("a", DSN), ("b", other)), [["a"], ["b"]]),
            ((("a", DSN), ("b", UUID)), [["a"], ["b"]]),
            ((("a", DSN), ("b", both), ("c", UUID)), [["a", "b", "c"]]),
            # A serial number of two cards tells neither.
            ((("a", both), ("b", DSN | {"nvidia": "GPU-other"})), [["a"], ["b"]]),
            (
                (("a", both), ("b", DSN | {"nvidia": "GPU-other"}), ("c", DSN)),
                [["a"], ["b"], ["c"]],
            ),
            # Neither does a chain of which the ends contradict.
            (
                (
                    ("a", both),
                    ("b", DSN | {"serial": "1234"}),
                    ("c", {"serial": "1234", "nvidia": "GPU-x"}),
                ),
                [["a"], ["b"], ["c"]],
            ),
            (
                (("a", passport.by_place(ONE, H200)), ("b", passport.by_place(ONE, H200))),
                [["a"], ["b"]],
            ),
        )
        for hosts, expected in rows:
            made = [record(host, look(ids=ids)) for host, ids in hosts]
            self.assertEqual(expected, self.cards(*made), hosts)
        self.assertEqual(
            [["a"], ["b"]], self.cards(record("a", look()), record("b", look(), product=H100))
        )

    def test_all_moves_between_two_hosts_and_slots(self) -> None:
        places = [(host, slot) for host in "ab" for slot in (ONE, TWO)]
        for moves in itertools.product(places, repeat=4):
            made: dict[str, Record] = {}
            for number, (host, slot) in enumerate(moves):
                for name, own in made.items():
                    if own.place and name != host:
                        made[name] = passport.gone(own, NOW + number * 60)
                before = made.get(host) or passport.new(host, H200, DSN, NOW)
                made[host] = passport.after(before, look(slot), NOW + number * 60 + 1)
            (card,) = passport.together(list(made.values()))
            journey = [key for key, _ in itertools.groupby(moves)]
            seen = [(e.host, e.address) for e in card.events if e.kind == "place"]
            self.assertEqual(journey, seen)
            self.assertEqual((), card.remarks)
            self.assertEqual([moves[-1]], [(r.host, r.place) for r in card.records if r.place])

    def test_what_is_doubtful_is_said(self) -> None:
        (card,) = passport.together([record("a", look()), record("b", look(TWO))])
        self.assertEqual(
            (f"it is said to be at several places: a at {ONE}, b at {TWO}",), card.remarks
        )
        other = record("b", look(ids=DSN | {"nvidia": "GPU-other"}))
        for card in passport.together([record("a", look(ids=DSN | UUID)), other]):
            self.assertEqual((f"pcie {DSN['pcie']} is also that of another card",), card.remarks)


class MergedTest(unittest.TestCase):
    def test_two_copies_of_a_host(self) -> None:
        made = record("a", look(), look(bus="1"))
        older, newer = record("a", look()), passport.after(made, look(TWO), NOW + DAY)
        for one, other in itertools.permutations((older, newer)):
            both = passport.merged(one, other)
            self.assertEqual(newer, both)
            self.assertEqual(both, passport.merged(both, one))

    def test_each_has_what_the_other_lacks(self) -> None:
        one = record("a", look(), look(bus="1"))
        other = record("a", look(TWO), look(TWO, nvml="2"), at=NOW + DAY)  # after a reinstallation
        for both in (passport.merged(one, other), passport.merged(other, one)):
            self.assertEqual(["place", "bus", "place", "nvml"], kinds(both))
            self.assertEqual(({"nvml": "2"}, TWO), (both.faults, both.place))

    def test_folded_events_do_not_come_back(self) -> None:
        made = record("a", look())
        for number in range(300):
            former, made = (
                made,
                passport.after(made, look(marks={"clean": f"{number}"}), NOW + number),
            )
        for both in (passport.merged(made, former), passport.merged(former, made)):
            self.assertEqual(made, both)

    def test_the_name_stays(self) -> None:
        one, other = (
            record("a", look(ids=DSN | UUID)),
            record("a", look(ids=UUID | DSN), at=NOW + 1),
        )
        self.assertEqual(passport.name(one), passport.name(passport.merged(one, other)))
        after = passport.after(one, look(ids={"amdgpu": "abcd"} | DSN), NOW)
        self.assertEqual(passport.name(one), passport.name(after))


class ReturnsTest(unittest.TestCase):
    def test_how_often_it_came_back(self) -> None:
        bus = look(bus="1")
        rows = (
            ([record("a", look())], 0),
            ([record("a", look(), bus)], 0),
            ([record("a", look(), bus, look())], 1),
            ([record("a", look(), bus, look(), bus, look())], 2),
            ([record("a", look(), bus, None, look())], 1),
            ([record("a", look(), bus, None), record("b", look(), at=NOW + DAY)], 1),
            ([record("a", look(), None), record("b", look(), at=NOW + DAY)], 0),
            ([record("a", look(), bus, None), record("b", bus, look(), at=NOW + DAY)], 2),
            ([record("a", look(), bus, look(), at=NOW - 31 * DAY)], 0),
            ([record("a", look(), bus, look(), at=NOW + 31 * DAY)], 1),  # a clock that is ahead
        )
        for records, expected in rows:
            (card,) = passport.together(records)
            self.assertEqual(expected, passport.returns(card.events, NOW + 2 * DAY), records)

    def test_an_operator_accepts_it(self) -> None:
        made = record("a", look(), look(bus="1"), look())
        noted = passport.noted(made, passport.NOTE, "RMA 4711", NOW + DAY)
        accepted = passport.noted(made, passport.ACCEPTED, "a new heat sink", NOW + DAY)
        self.assertEqual(1, passport.returns(noted.events, NOW + DAY))
        self.assertEqual(0, passport.returns(accepted.events, NOW + DAY))


class LinesTest(unittest.TestCase):
    def test_lines(self) -> None:
        made = record("a", look(bus="1 fatal"), look(TWO))
        made = dataclasses.replace(made, folded={"clean": Folded(7, 1.0)})
        (card,) = passport.together([made])
        self.assertEqual(
            [
                f"pcie {DSN['pcie']} ({H200})",
                "  before: 7 x clean",
                f"  2026-11-30 23:40:11+00:00  a  {ONE}  place",
                f"  2026-11-30 23:40:11+00:00  a  {ONE}  bus  1 fatal",
            ],
            passport.lines(card)[:4],
        )
        self.assertEqual(Event(NOW, "a", ONE, "place", ""), card.events[0])
