# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection

from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, MIGInstance, PciAddress
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.pci import identity
from nova_gpu.host.state import proofs
from tests.fixtures import cards, kernel
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
            lambda found: {
                each.address: identity.read(each, self.host.roots) if self.is_told_apart else {}
                for each in found
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

    def test_written_and_revoked(self) -> None:
        self.assertFalse(self.holds())
        self.write()
        self.assertTrue(self.holds())
        self.assertEqual([f"{ONE}.json"], [path.name for path in self.folder.iterdir()])
        proofs.revoke(self.folder, [self.card.address])
        self.assertFalse(self.holds())
        proofs.revoke(self.folder, [self.card.address])

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
            for each in (self.card.address, *parts):
                proofs.write(self.folder, each, self.card, seen, "reset", None)
            proofs.revoke(self.folder, [used], here)
            self.assertTrue((self.folder / f"{TWO}.json").exists())
            every = (self.card.address, *parts)
            return {each for each in every if proofs.holds(self.folder, each, self.card, seen)}

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

    def test_another_boot(self) -> None:
        self.write()
        kernel.boot(self.host, "the-next")
        self.assertFalse(self.holds())

    def test_no_boot_id(self) -> None:
        self.write()
        kernel.boot(self.host, "")
        self.assertFalse(self.holds())
        self.assertIsNone(self.see())

    def test_another_card_there(self) -> None:
        card = dataclasses.replace(self.card, uuid="GPU-1")
        self.write(card)
        self.assertTrue(self.holds(card))
        self.assertFalse(self.holds(dataclasses.replace(card, uuid="GPU-2")))

    def test_one_more_of_the_product(self) -> None:
        """Where nothing tells cards apart, one that came may be anywhere."""
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
