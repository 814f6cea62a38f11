# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu passport`` over files of hosts"""

from __future__ import annotations

import io
import json
import pathlib
import tempfile
import unittest
from types import SimpleNamespace
from typing import Any

from osc_lib import exceptions

from nova_gpu_cardlife.core import passport
from nova_gpu_cardlife.core.passport import Look, Record
from osc_gpu_cardlife.passport import ShowPassport
from tests.unit.cardlife.test_passport import DSN, H200, NOW, ONE, TWO, UUID, look, record

SERIAL = DSN["pcie"]


class ShowPassportTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def file(self, content: Any) -> str:
        path = self.folder / f"{len(list(self.folder.iterdir()))}.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def shown(self, serial: str, *contents: Any) -> list[tuple[Any, ...]]:
        app = SimpleNamespace(stderr=io.StringIO(), stdout=io.StringIO())
        command = ShowPassport(app, None)
        files = [self.file(passport.dump(c) if isinstance(c, Record) else c) for c in contents]
        parsed = command.get_parser("").parse_args([serial, *files])
        rows = list(command.take_action(parsed)[1])
        self.messages = app.stderr.getvalue()
        return rows

    def test_a_card_that_moved(self) -> None:
        one = record("one", look(), look(quarantine="Xid 79"), None)
        other = record("other", look(TWO), look(TWO, bus="8 fatal"), at=NOW + 86400)
        elsewhere = record("one", look(ids={"pcie": "00-00-00-00-00-00-00-77"}))
        host = [passport.dump(one), passport.dump(elsewhere)]
        rows = self.shown(SERIAL.upper(), host, other, other)
        self.assertEqual(
            [
                ("2026-11-30 23:40:11+00:00", "one", ONE, "place", ""),
                ("2026-12-01 00:40:11+00:00", "one", ONE, "quarantine", "Xid 79"),
                ("2026-12-01 01:40:11+00:00", "one", ONE, "gone", ""),
                ("2026-12-01 23:40:11+00:00", "other", TWO, "place", ""),
                ("2026-12-02 00:40:11+00:00", "other", TWO, "bus", "8 fatal"),
            ],
            rows,
        )
        self.assertEqual(
            f"pcie {SERIAL} ({H200})\n"
            f"Last seen 2026-12-02 00:40:11+00:00 on other at {TWO}; bus 8 fatal\n",
            self.messages,
        )

    def test_what_is_doubtful(self) -> None:
        self.shown(SERIAL, record("one", look()), record("other", look(TWO)))
        self.assertIn(f"Doubtful: it is said to be at several places: one at {ONE}", self.messages)
        others = [record(h, look(ids=DSN | {"nvidia": f"GPU-{h}"})) for h in ("one", "other")]
        self.assertEqual(2, len(self.shown(SERIAL, *others)))
        self.assertIn("one of 2 cards of that number", self.messages)

    def test_folded_events(self) -> None:
        made = record("one", look(ids=UUID))
        for number in range(250):
            again = Look(ONE, UUID, {}, {"clean": str(number)})
            made = passport.after(made, again, NOW + number)
        self.assertEqual(passport.MOST_EVENTS, len(self.shown(UUID["nvidia"], made)))
        self.assertIn("Before that: 51 times clean\n", self.messages)

    def test_a_card_by_its_place(self) -> None:
        by_place = passport.by_place(ONE, H200)
        made = [record(host, look(ids=by_place)) for host in ("one", "other")]
        self.assertEqual(2, len(self.shown(by_place["place"], *made)))
        self.assertEqual(2, len(self.shown(ONE, *made)))

    def test_files_that_are_none(self) -> None:
        good = record("one", look())
        for content, text in (
            ("garbage", "has no passport of a card"),
            ({}, "has no passport of a card"),
            ([[]], "has no passport of a card"),
            (passport.dump(good) | {"host": "a/b"}, "name files of [gpu]passport_folder"),
        ):
            error = self.refusal(SERIAL, content)
            self.assertIn(text, error)
        self.assertIn(f"has a card 7; they have {SERIAL}", self.refusal("7", good))
        self.folder = self.folder / "missing"
        command = ShowPassport(SimpleNamespace(stderr=io.StringIO()), None)
        parsed = command.get_parser("").parse_args(["7", str(self.folder)])
        with self.assertRaises(exceptions.CommandError) as caught:
            command.take_action(parsed)
        self.assertIn("cannot be read: No such file or directory", str(caught.exception))

    def refusal(self, serial: str, content: Any) -> str:
        with self.assertRaises(exceptions.CommandError) as caught:
            self.shown(serial, content)
        return str(caught.exception)
