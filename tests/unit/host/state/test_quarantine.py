# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from typing import Any

from nova_gpu.core import availability, model
from nova_gpu.host.pci import identity
from nova_gpu.host.state import quarantine
from tests.fixtures import cards, kernel, pci
from tests.fixtures.bases.host import HostTestCase

ADDRESS = "0000:88:00.0"


class QuarantineTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = self.root / "gpu-quarantine"
        self.card = cards.card(ADDRESS)

    def put(self, **kwargs: Any) -> quarantine.Entry:
        entry = quarantine.entry(self.card, "the command ended with 3", "mend it", **kwargs)
        quarantine.put(self.folder, entry)
        return entry

    def reason(self, card: model.GPU | None = None) -> str | None:
        card = card or self.card
        found = quarantine.unavailable(self.folder, [card], self.host.roots)
        return availability.text(found.get(card.address, ()))

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

    def test_to_be_cleaned(self) -> None:
        """As an older release noted it: now a card is to be cleaned that has no proof."""
        quarantine.put(self.folder, dataclasses.replace(self.put(), cleaning=True))
        self.assertIsNone(self.reason())
        self.assertEqual([self.card.address], quarantine.to_clean(self.folder))
        self.put()
        self.assertEqual([], quarantine.to_clean(self.folder))

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


ONE, TWO, THREE = "0000:04:00.0", "0000:06:00.0", "0000:88:00.0"
NEW = "0000:05:00.0"


class MovedTest(HostTestCase):
    """Three cards of one product that vfio-pci has"""

    def setUp(self) -> None:
        super().setUp()
        self.folder = self.root / "gpu-quarantine"
        kernel.boot(self.host, "the-first")
        for number, address in enumerate((ONE, TWO, THREE), start=1):
            self.plug(address, number)

    def plug(self, address: str, number: int | None) -> None:
        """:param number: its serial number, if it has one"""
        self.host.add_gpu(address, "10de", "2335", driver="vfio-pci")
        if number is not None:
            pci.write_serial_number(self.host.path(address), number)

    def move(self, *moves: tuple[str, str]) -> None:
        """At the next boot"""
        configs = [(self.host.path(old) / "config").read_bytes() for old, _ in moves]
        for old, _ in moves:
            self.host.remove(old)
        for (_, new), config in zip(moves, configs, strict=True):
            self.plug(new, None)
            (self.host.path(new) / "config").write_bytes(config)
        kernel.boot(self.host, "the-second")

    def identities(self, found: Iterable[model.GPU]) -> dict[model.PciAddress, identity.Identity]:
        return {card.address: identity.read(card, self.host.roots) for card in found}

    def put(self, address: str, reason: str = "it is broken", **kwargs: Any) -> None:
        card = self.gpu_at(address)
        seen = quarantine.see([card], self.host.roots, self.identities)[card.address]
        entry = quarantine.entry(card, reason, "mend it", seen=seen, **kwargs)
        quarantine.put(self.folder, entry)
        self.assertEqual({card.address: entry}, {card.address: self.loaded()[address]})

    def loaded(self) -> dict[str, quarantine.Entry]:
        return {str(each): found for each, found in quarantine.load(self.folder).items()}

    def kept(self) -> dict[str, str]:
        found = quarantine.unavailable(self.folder, self.host.gpus(), self.host.roots)
        return {str(address): str(*reasons) for address, reasons in found.items()}

    def follow(self) -> list[tuple[str, str]]:
        moved = quarantine.follow(self.folder, self.host.gpus(), self.host.roots)
        return sorted((str(old), str(new)) for old, new in moved)

    def test_comes_back_where_it_has_left_the_bus(self) -> None:
        """Without anything that tells it from others: these are not kept back for it."""
        self.host.remove(ONE)
        self.plug(ONE, None)
        card = self.gpu_at(ONE)
        self.host.remove(ONE)
        seen = quarantine.see([card], self.host.roots, self.identities)[card.address]
        quarantine.put(self.folder, quarantine.entry(card, "not clean", "clean it", seen=seen))
        self.assertEqual([], list(self.kept()))
        self.plug(ONE, None)
        for other in (TWO, THREE):
            self.host.remove(other)
            self.plug(other, None)
        self.assertEqual([ONE], list(self.kept()))

    def test_by_its_serial_number(self) -> None:
        self.put(ONE)
        self.move((ONE, NEW), (TWO, ONE))
        self.assertEqual([NEW], list(self.kept()))
        self.assertIn(f"it is in quarantine as {ONE} since", self.kept()[NEW])
        self.assertEqual([(ONE, NEW)], self.follow())
        self.assertEqual([NEW], list(self.loaded()))
        self.assertEqual([NEW], list(self.kept()))
        self.assertEqual([], self.follow())

    def test_two_that_changed_places(self) -> None:
        self.put(ONE, "the first")
        self.put(TWO, "the second")
        self.move((ONE, TWO), (TWO, ONE))
        self.assertEqual([(ONE, TWO), (TWO, ONE)], self.follow())
        found = self.loaded()
        self.assertEqual(("the second", "the first"), (found[ONE].reason, found[TWO].reason))

    def test_one_behind_another(self) -> None:
        for address in (ONE, TWO):
            self.put(address, f"was at {address}")
        self.move((ONE, TWO), (TWO, NEW))
        self.follow()
        found = self.loaded()
        self.assertEqual([NEW, TWO], sorted(found))
        self.assertEqual(f"was at {TWO}", found[NEW].reason)

    def test_another_card_in_its_place(self) -> None:
        self.put(ONE)
        self.host.remove(ONE)
        self.plug(ONE, 7)
        self.assertEqual({}, self.kept())
        card = self.gpu_at(ONE)
        own = self.identities([card])[card.address]
        self.assertFalse(quarantine.is_about(self.loaded()[ONE], card, own))

    def without_serial_numbers(self) -> None:
        for address in (ONE, TWO, THREE):
            config = self.host.path(address) / "config"
            config.write_bytes(config.read_bytes()[:256])
        self.put(ONE)

    def test_nothing_tells_them_apart(self) -> None:
        """Then all of the product are kept back where any has another address."""
        self.without_serial_numbers()
        self.assertEqual([ONE], list(self.kept()))
        kernel.boot(self.host, "the-second")
        self.assertEqual([ONE], list(self.kept()))
        self.move((TWO, NEW))
        self.assertEqual([ONE, NEW, THREE], sorted(self.kept()))
        self.assertIn(f"nova-gpu quarantine release {ONE}", self.kept()[THREE])
        self.assertEqual([], self.follow())
        quarantine.release(self.folder, model.PciAddress.parse(ONE))
        self.assertEqual({}, self.kept())

    def test_one_that_went_away(self) -> None:
        """Until the host is booted the others are where they were."""
        self.without_serial_numbers()
        self.host.remove(TWO)
        self.assertEqual([ONE], list(self.kept()))
        kernel.boot(self.host, "the-second")
        self.assertEqual([ONE, THREE], sorted(self.kept()))

    def test_a_file_without_what_was_seen(self) -> None:
        """As an older release or an operator wrote it"""
        self.put(ONE)
        path = self.folder / f"{ONE}.json"
        content = json.loads(path.read_text())
        del content["seen"]
        path.write_text(json.dumps(content))
        self.move((ONE, NEW), (TWO, ONE))
        self.assertEqual([ONE], list(self.kept()))

    def test_a_garbled_one(self) -> None:
        self.put(ONE)
        path = self.folder / f"{ONE}.json"
        content = json.loads(path.read_text())
        for garbled in (1, [], {"identity": {}}, {"identity": [], "addresses": [], "boot_id": ""}):
            path.write_text(json.dumps({**content, "seen": garbled}))
            self.assertIn("cannot be understood", self.kept()[ONE])
