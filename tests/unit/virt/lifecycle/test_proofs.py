# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import errno
import logging
from collections.abc import Iterable

import fixtures

from nova_gpu.core import exception
from nova_gpu.core.model import GPU, MIGInstance, PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard, Parent, Slot, VGPUKind, VGPUType
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.pci.identity import Identity
from nova_gpu.virt.lifecycle import proofs
from nova_gpu.virt.usage.ledger import Ledger
from tests.fixtures import cards, failing_calls
from tests.fixtures.bases.host import HostTestCase

ONE, TWO = "0000:88:00.0", "0000:89:00.0"


class ProofsTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(format="%(levelname)s %(message)s"))
        self.cards = [cards.card(address) for address in (ONE, TWO)]
        for address in (ONE, TWO):
            self.host.add_gpu(address, "10de", "2335")
        self.folder = self.root / "state" / "gpu-clean"
        self.identities: dict[str, Identity] = {ONE: {}, TWO: {}}
        self.folder.parent.mkdir()
        self.proofs, self.ledger = self.service()

    def service(self) -> tuple[proofs.Proofs, Ledger]:
        ledger = Ledger()

        def identities(gpus: Iterable[GPU]) -> dict[PciAddress, Identity]:
            return {card.address: self.identities[str(card.address)] for card in gpus}

        return proofs.Proofs(self.folder, self.host.roots, identities, ledger), ledger

    def dirty(self) -> set[str]:
        """What another service takes for dirty"""
        known, ledger = self.service()
        known.judge(self.cards, ())
        return set(map(str, ledger.now.used))

    def prove(self, card: GPU) -> None:
        self.proofs.prove(card.address, card, "reset", None)

    def test_another_driver_has_run(self) -> None:
        self.prove(self.cards[0])
        known, ledger = self.service()
        known.distrust()
        known.judge(self.cards, ())
        self.assertEqual({ONE, TWO}, set(map(str, ledger.now.used)))

    def test_judged_once(self) -> None:
        self.proofs.judge(self.cards, ())
        for card in self.cards:
            self.ledger.cleaned(card.address)
        self.proofs.judge(self.cards, ())
        self.assertEqual(frozenset(), self.ledger.now.used)
        self.proofs.judge(self.cards[:1], ())
        self.proofs.judge(self.cards, ())
        self.assertEqual({TWO}, set(map(str, self.ledger.now.used)), "it was away")

    def test_another_card_of_the_product_there(self) -> None:
        """It was put there between two periods."""
        self.identities = {ONE: {"nvidia": "GPU-1"}, TWO: {"nvidia": "GPU-2"}}
        for card in self.cards:
            self.prove(card)
        self.proofs.judge(self.cards, ())
        self.identities[ONE] = {}
        self.proofs.judge(self.cards, ())
        self.assertEqual(frozenset(), self.ledger.now.used, "what cannot be read is no other card")
        self.identities[ONE] = {"nvidia": "GPU-3"}
        self.proofs.judge(self.cards, ())
        self.assertEqual({ONE}, set(map(str, self.ledger.now.used)))

    def test_used_by_another_domain(self) -> None:
        for card in self.cards:
            self.prove(card)
        self.proofs.judge(self.cards, ())
        self.ledger.was_used([self.cards[0].address])
        self.proofs.withdraw_used()
        self.assertEqual({ONE}, self.dirty())
        with failing_calls.all_from(self.folder, 1, errno.EIO):
            self.proofs.withdraw_used()
        self.assertIn("Failed to remove the proofs of GPUs", self.log.output)

    def test_what_cannot_be_written(self) -> None:
        """It is not offered, and need not be cleaned again."""
        card = self.cards[0]
        self.folder.parent.rename(self.folder.parent.with_name("away"))
        with self.assertRaises(OSError):
            self.proofs.prove(card.address, card, "reset", "an instance")
        self.assertEqual([card.address], list(self.proofs.unavailable()))
        self.assertIn(
            f"GPU {ONE} is not offered: the proof that it is clean cannot", self.log.output
        )
        self.ledger.was_used([card.address])
        self.proofs.write_again()
        self.assertTrue(self.proofs.is_cleaned(card.address))
        self.folder.parent.mkdir()
        self.proofs.write_again()
        self.assertEqual({}, self.proofs.unavailable())
        self.assertFalse(self.proofs.is_cleaned(card.address))
        self.assertEqual(frozenset(), self.ledger.now.used)
        self.assertEqual({TWO}, self.dirty())

    def test_mig_instances_that_may_not_be_clean(self) -> None:
        """A start may come before the period that sees how its card is divided now."""
        address, small, (one, other) = PciAddress.parse("0000:8a:00.0"), "1g.18gb", (100, 200)
        self.host.add_gpu(str(address), "10de", "2335", minor=0, mig=[(1, 0), (2, 0)])
        self.identities[str(address)] = {}
        mig = tuple(MIGInstance(number, 0, small, 16384, 1) for number in (1, 2))
        parent = Parent(VGPUKind.INSTANCE, {}, {small: 2}, {small: (one, other)})
        divided = DividedCard({small: VGPUType(small, small)}, {address: parent})
        gpu = dataclasses.replace(cards.card(str(address)), mig=mig)
        slot = Slot(address, small, one)

        def refused(message: str) -> None:
            with self.assertRaisesRegex(exception.DeviceUnavailable, message):
                self.proofs.refuse_unjudged([slot])

        refused("divided into other MIG instances")
        self.proofs.judge((), [SharedCard(gpu, divided)])
        refused("it is not clean")
        self.ledger.cleaned(slot)
        self.proofs.refuse_unjudged([slot])
        self.host.set_mig(str(address), [(1, 0)])
        refused("divided into other MIG instances")

    def test_what_cannot_be_removed(self) -> None:
        self.folder.write_text("a file in its place")
        with self.assertRaisesRegex(exception.DeviceUnavailable, "cannot be removed"):
            self.proofs.revoke([self.cards[0].address])
        self.assertEqual({ONE}, set(map(str, self.ledger.now.used)))
        self.proofs.lacking(self.cards[0].address, "it is being cleaned", "wait", logging.WARNING)
        self.assertNotIn("ERROR", self.log.output)
        self.proofs.withdraw(self.cards[0])
        self.assertIn("Failed to remove the proof", self.log.output)
        self.proofs.lacking(self.cards[1].address, "the disk is full", "make room")
        (reason,) = self.proofs.unavailable()[self.cards[1].address]
        self.assertEqual("the disk is full; make room", str(reason))
