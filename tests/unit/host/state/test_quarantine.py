# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import fixtures
from oslotest import base

from nova_gpu.core import model
from nova_gpu.host.state import quarantine
from tests.fixtures import cards

ADDRESS = "0000:88:00.0"


class QuarantineTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.folder = root / "gpu-quarantine"
        self.card = cards.card(ADDRESS)

    def put(self, **kwargs: Any) -> quarantine.Entry:
        entry = quarantine.entry(self.card, "the command ended with 3", "mend it", **kwargs)
        quarantine.put(self.folder, entry)
        return entry

    def reason(self, card: model.GPU | None = None) -> str | None:
        card = card or self.card
        return quarantine.reasons(self.folder, [card]).get(card.address)

    def test_nothing(self) -> None:
        self.assertEqual({}, quarantine.load(self.folder))
        self.assertIsNone(self.reason())
        self.assertIsNone(quarantine.release(self.folder, self.card.address))

    def test_there_and_back(self) -> None:
        entry = self.put()
        self.assertEqual({self.card.address: entry}, quarantine.load(self.folder))
        self.assertIn("the command ended with 3; mend it", self.reason() or "")
        self.assertEqual([f"{ADDRESS}.json"], os.listdir(self.folder))
        self.assertEqual(0o644, (self.folder / f"{ADDRESS}.json").stat().st_mode & 0o777)
        self.assertEqual(entry, quarantine.release(self.folder, self.card.address))
        self.assertIsNone(self.reason())

    def test_of_the_neighbour(self) -> None:
        self.put()
        self.assertIsNone(self.reason(cards.card("0000:89:00.0")))

    def test_another_product_is_another_card(self) -> None:
        self.put()
        other = dataclasses.replace(self.card, product=model.Product("10de", "2330"))
        self.assertIsNone(self.reason(other))

    def test_being_cleaned(self) -> None:
        self.put(cleaning=True)
        self.assertIsNone(self.reason())
        self.assertTrue(quarantine.load(self.folder)[self.card.address].cleaning)

    def test_until_the_host_has_booted(self) -> None:
        entry = self.put(until_boot="this-boot")
        self.assertEqual([], quarantine.end_those_of_former_boots(self.folder, "this-boot"))
        self.assertIsNotNone(self.reason())
        self.assertEqual([entry], quarantine.end_those_of_former_boots(self.folder, "the-next"))
        self.assertIsNone(self.reason())
        self.put()
        self.assertEqual([], quarantine.end_those_of_former_boots(self.folder, "the-next"))
        self.assertIsNotNone(self.reason())

    def test_garbled(self) -> None:
        """It may be of any product, and can be released."""
        self.folder.mkdir()
        for text in (b"", b"{", b"[]", b"null", b'{"product": 7}', b"\xff\xfe", b"[" * 100_000):
            (self.folder / f"{ADDRESS}.json").write_bytes(text)
            self.assertIn("cannot be understood", self.reason() or "")
        self.assertIsNotNone(quarantine.release(self.folder, self.card.address))
        self.assertIsNone(self.reason())

    def test_a_file_that_is_none(self) -> None:
        (self.folder / f"{ADDRESS}.json").mkdir(parents=True)
        self.assertIn("cannot be understood", self.reason() or "")

    def test_unreadable_folder(self) -> None:
        self.folder.write_text("a file in its place")
        self.assertIn("cannot be read", self.reason() or "")

    def test_what_is_about_no_card(self) -> None:
        self.put()
        for name in ("README", f".{ADDRESS}.json", "0000:99:99.9.json"):
            (self.folder / name).write_text("{}")
        self.assertEqual([self.card.address], list(quarantine.load(self.folder)))
