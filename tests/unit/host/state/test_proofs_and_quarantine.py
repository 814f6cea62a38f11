# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Iterable
from typing import Any

from nova_gpu.core import model, unavailability
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, MIGInstance, PciAddress
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.pci import identity
from nova_gpu.host.state import proofs, quarantine
from tests.fixtures import cards, kernel, pci
from tests.fixtures.bases.host import HostTestCase

ONE, TWO = "0000:88:00.0", "0000:89:00.0"
SLOT = Slot(PciAddress.parse(ONE), "3g.71gb", 100)


class ProofsTest(HostTestCase):
    is_told_apart = True

    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(ONE, "10de", "2335")
        self.folder = self.root / "gpu-clean"
        self.card = cards.card(ONE)

    def see(self, card: GPU | None = None) -> proofs.Seen | None:
        card = card or self.card
        seen = proofs.see(
            [card],
            self.host.roots,
            lambda gpus: {
                gpu.address: identity.read(gpu, self.host.roots) if self.is_told_apart else {}
                for gpu in gpus
            },
        )
        return seen.get(card.address)

    def write(self, card: GPU | None = None) -> None:
        seen = self.see(card)
        assert seen is not None
        card = card or self.card
        proofs.write(self.folder, card.address, card, seen, "reset", None)

    def holds(self, card: GPU | None = None) -> bool:
        card = card or self.card
        return proofs.holds(self.folder, card.address, card, self.see(card))

    def test_of_a_part(self) -> None:
        seen = self.see()
        assert seen is not None
        proofs.write(self.folder, SLOT, self.card, seen, "reset", "an instance")
        self.assertTrue(proofs.holds(self.folder, SLOT, self.card, seen))
        self.assertFalse(self.holds())

    def test_of_a_card_divided_anew(self) -> None:
        """A guest with a part of it may have had the memory of what it was before."""
        seen = self.see()
        assert seen is not None
        small, other = (Slot(SLOT.parent, "1g.18gb", number) for number in (100, 900))
        parts = (SLOT, small, other)
        self.host.add_gpu(TWO, "10de", "2335")
        self.write(cards.card(TWO))

        def proven_after(used: Device, here: Collection[Device]) -> set[Device]:
            for address in (self.card.address, *parts):
                proofs.write(self.folder, address, self.card, seen, "reset", None)
            proofs.revoke(self.folder, [used], here)
            self.assertTrue((self.folder / f"{TWO}.json").exists())
            every = (self.card.address, *parts)
            return {
                address for address in every if proofs.holds(self.folder, address, self.card, seen)
            }

        self.assertEqual({other}, proven_after(small, [small, other]))
        self.assertEqual(set(), proven_after(self.card.address, [self.card.address]))
        self.assertEqual(set(), proven_after(self.card.address, parts))

    def test_another_division(self) -> None:
        """The ids of the MIG instances may be the same, and their memory another one's."""
        seen = self.see()
        assert seen is not None

        def divided(*layout: tuple[int, str]) -> GPU:
            mig = tuple(MIGInstance(gi, 0, profile, 1024, 1) for gi, profile in layout)
            return dataclasses.replace(self.card, mig=mig)

        layout = ((1, "1g.18gb"), (9, "1g.18gb"))
        card = divided(*layout)
        slot = Slot(SLOT.parent, "1g.18gb", 900)
        proofs.write(self.folder, slot, card, seen, "reset", None)
        self.assertIsNone(proofs.missing(self.folder, slot, divided(*reversed(layout)), seen))
        for other in (divided((1, "3g.71gb"), (9, "1g.18gb")), divided(*layout[1:]), self.card):
            reason = proofs.missing(self.folder, slot, other, seen)
            self.assertIn("divided into other MIG instances", str(reason))

    def test_another_boot_or_none(self) -> None:
        self.write()
        self.assertTrue(self.holds())
        for boot in ("the-next", ""):
            kernel.boot(self.host, boot)
            self.assertFalse(self.holds())
        self.assertIsNone(self.see())

    def test_another_card_there(self) -> None:
        card = dataclasses.replace(self.card, uuid="GPU-1")
        self.write(card)
        self.assertTrue(self.holds(card))
        self.assertFalse(self.holds(dataclasses.replace(card, uuid="GPU-2")))
        # Where nothing tells cards apart, one that came may be anywhere.
        self.is_told_apart = False
        self.write()
        self.assertTrue(self.holds())
        self.host.add_gpu(TWO, "10de", "2335")
        self.assertFalse(self.holds())

    def test_what_cannot_be_read_is_no_proof(self) -> None:
        self.write()
        path = self.folder / f"{ONE}.json"
        content = json.loads(path.read_text())
        for text in ("", "{", "[]", "null", '{"device": 7}', "[" * 100_000):
            path.write_text(text)
            self.assertFalse(self.holds(), text[:20])
        for name in content:
            path.write_text(json.dumps({**content, name: 7}))
            self.assertFalse(self.holds(), name)
            path.write_text(json.dumps({k: v for k, v in content.items() if k != name}))
            # Earlier versions wrote no division.
            self.assertEqual(name == "division", self.holds(), name)
        path.write_text(json.dumps({**content, "device": TWO}))
        self.assertFalse(self.holds())
        path.unlink()
        os.symlink("/dev/null", path)
        self.assertFalse(self.holds())


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
        reasons = quarantine.unavailable(self.folder, [card], self.host.roots)
        return unavailability.text(reasons.get(card.address, ()))

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

    def test_unreadable_folder(self) -> None:
        self.folder.write_text("a file in its place")
        self.assertIn("cannot be read", self.reason() or "")

    def test_what_is_about_no_card(self) -> None:
        self.put()
        for name in ("README", f".{ADDRESS}.json", "0000:99:99.9.json"):
            (self.folder / name).write_text("{}")
        self.assertEqual([self.card.address], list(quarantine.load(self.folder)))


FIRST, SECOND, THREE = "0000:04:00.0", "0000:06:00.0", "0000:88:00.0"
NEW = "0000:05:00.0"


class MovedTest(HostTestCase):
    """Three cards of one product that vfio-pci has"""

    def setUp(self) -> None:
        super().setUp()
        self.folder = self.root / "gpu-quarantine"
        kernel.boot(self.host, "the-first")
        for number, address in enumerate((FIRST, SECOND, THREE), start=1):
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

    def identities(self, gpus: Iterable[model.GPU]) -> dict[model.PciAddress, identity.Identity]:
        return {card.address: identity.read(card, self.host.roots) for card in gpus}

    def put(self, address: str, reason: str = "it is broken", **kwargs: Any) -> None:
        card = self.gpu_at(address)
        seen = quarantine.see([card], self.host.roots, self.identities)[card.address]
        entry = quarantine.entry(card, reason, "mend it", seen=seen, **kwargs)
        quarantine.put(self.folder, entry)
        self.assertEqual({card.address: entry}, {card.address: self.loaded()[address]})

    def loaded(self) -> dict[str, quarantine.Entry]:
        return {str(address): entry for address, entry in quarantine.load(self.folder).items()}

    def kept(self) -> dict[str, str]:
        reasons_by_card = quarantine.unavailable(self.folder, self.host.gpus(), self.host.roots)
        return {str(address): str(*reasons) for address, reasons in reasons_by_card.items()}

    def follow(self) -> list[tuple[str, str]]:
        moved = quarantine.follow(self.folder, self.host.gpus(), self.host.roots)
        return sorted((str(old), str(new)) for old, new in moved)

    def test_comes_back_where_it_has_left_the_bus(self) -> None:
        """Without anything that tells it from others: these are not kept back for it."""
        self.host.remove(FIRST)
        self.plug(FIRST, None)
        card = self.gpu_at(FIRST)
        self.host.remove(FIRST)
        seen = quarantine.see([card], self.host.roots, self.identities)[card.address]
        quarantine.put(self.folder, quarantine.entry(card, "not clean", "clean it", seen=seen))
        self.assertEqual([], list(self.kept()))
        self.plug(FIRST, None)
        for other in (SECOND, THREE):
            self.host.remove(other)
            self.plug(other, None)
        self.assertEqual([FIRST], list(self.kept()))

    def test_by_its_serial_number(self) -> None:
        self.put(FIRST)
        self.move((FIRST, NEW), (SECOND, FIRST))
        self.assertEqual([NEW], list(self.kept()))
        self.assertIn(f"it is in quarantine as {FIRST} since", self.kept()[NEW])
        self.assertEqual([(FIRST, NEW)], self.follow())
        self.assertEqual(
            ([NEW], [NEW], []), (list(self.loaded()), list(self.kept()), self.follow())
        )
        self.put(FIRST, "the second")  # two that change places
        self.move((FIRST, NEW), (NEW, FIRST))
        self.assertEqual([(FIRST, NEW), (NEW, FIRST)], self.follow())
        entries = self.loaded()
        self.assertEqual(
            ("the second", "it is broken"), (entries[NEW].reason, entries[FIRST].reason)
        )

    def test_another_card_in_its_place(self) -> None:
        self.put(FIRST)
        self.host.remove(FIRST)
        self.plug(FIRST, 7)
        self.assertEqual({}, self.kept())
        card = self.gpu_at(FIRST)
        own = self.identities([card])[card.address]
        self.assertFalse(quarantine.is_about(self.loaded()[FIRST], card, own))

    def without_serial_numbers(self) -> None:
        for address in (FIRST, SECOND, THREE):
            config = self.host.path(address) / "config"
            config.write_bytes(config.read_bytes()[:256])
        self.put(FIRST)

    def test_nothing_tells_them_apart(self) -> None:
        """Then all of the product are kept back where any has another address."""
        self.without_serial_numbers()
        self.assertEqual([FIRST], list(self.kept()))
        kernel.boot(self.host, "the-second")
        self.assertEqual([FIRST], list(self.kept()))
        self.move((SECOND, NEW))
        self.assertEqual([FIRST, NEW, THREE], sorted(self.kept()))
        self.assertIn(f"nova-gpu quarantine release {FIRST}", self.kept()[THREE])
        self.assertEqual([], self.follow())
        quarantine.release(self.folder, model.PciAddress.parse(FIRST))
        self.assertEqual({}, self.kept())

    def test_one_that_went_away(self) -> None:
        """Until the host is booted the others are where they were."""
        self.without_serial_numbers()
        self.host.remove(SECOND)
        for boot, addresses in (("the-first", [FIRST]), ("the-second", [FIRST, THREE])):
            kernel.boot(self.host, boot)
            self.assertEqual(addresses, sorted(self.kept()))

    def test_a_file_without_what_was_seen(self) -> None:
        """As an older release or an operator wrote it"""
        self.put(FIRST)
        path = self.folder / f"{FIRST}.json"
        content = json.loads(path.read_text())
        del content["seen"]
        path.write_text(json.dumps(content))
        self.move((FIRST, NEW), (SECOND, FIRST))
        self.assertEqual([FIRST], list(self.kept()))

    def test_a_garbled_one(self) -> None:
        self.put(FIRST)
        path = self.folder / f"{FIRST}.json"
        content = json.loads(path.read_text())
        for garbled in (1, [], {"identity": {}}, {"identity": [], "addresses": [], "boot_id": ""}):
            path.write_text(json.dumps({**content, "seen": garbled}))
            self.assertIn("cannot be understood", self.kept()[FIRST])
