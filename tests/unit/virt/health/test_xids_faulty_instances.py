# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib

import fixtures
from oslotest import base

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind, Parent, VGPUType
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.virt.health.xids import FaultyInstances
from tests.fixtures import cards

CARD = PciAddress.parse("0000:19:00.0")
BOOT, NEXT_BOOT = "first", "second"


class FaultyInstancesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "withheld")
        self.faulty = FaultyInstances(self.path)

    def test_until_the_host_boots(self) -> None:
        named = frozenset({(CARD, "9/0"), (CARD, "1/*")})
        self.faulty.save(BOOT, named)
        self.assertEqual(named, self.faulty.of_boot(BOOT))
        self.assertEqual(named, FaultyInstances(self.path).of_boot(BOOT), "of another service")
        self.assertEqual(frozenset(), self.faulty.of_boot(NEXT_BOOT))

    def test_format(self) -> None:
        self.path.write_text('{"boot_id": "first", "instances": [["0000:19:00.0", "9/0"]]}')
        self.assertEqual({(CARD, "9/0")}, self.faulty.of_boot(BOOT))

    def test_what_is_none_of_ours(self) -> None:
        own = '"boot_id": "first"'
        for text in ("", "[]", f"{{{own}}}", f'{{{own}, "instances": [["x"]]}}'):
            self.path.write_text(text)
            with self.assertRaises(ValueError, msg=text):
                self.faulty.of_boot(BOOT)

    def test_what_cannot_be_written_holds(self) -> None:
        named = frozenset({(CARD, "9/0")})
        path = self.path.parent / "there" / "withheld"
        faulty = FaultyInstances(path)
        with self.assertRaises(FileNotFoundError):
            faulty.add(BOOT, named)
        self.assertEqual(named, faulty.of_boot(BOOT))
        path.parent.mkdir()
        faulty.add(BOOT, frozenset({(CARD, "1/*")}))
        self.assertEqual(named | {(CARD, "1/*")}, FaultyInstances(path).of_boot(BOOT))

    def test_slots(self) -> None:
        """By their numbers, whatever their size; one that is gone is forgotten."""
        parent = Parent(Kind.INSTANCE, {}, {}, numbers={"1g.18gb": (900, 1000), "3g.71gb": (100,)})
        types = {each: VGPUType(each) for each in ("1g.18gb", "3g.71gb")}
        card = SharedCard(cards.card(str(CARD)), DividedCard(types, {CARD: parent}))
        there = frozenset({(CARD, "9/0"), (CARD, "1/*")})
        elsewhere = (PciAddress.parse("0000:3b:00.0"), "9/0")
        self.faulty.save(BOOT, there | {(CARD, "7/0"), elsewhere})
        found = {str(slot) for slot in self.faulty.slots([card], lambda: BOOT)}
        self.assertEqual({f"{CARD}/1g.18gb/900", f"{CARD}/3g.71gb/100"}, found)
        self.assertEqual(there | {elsewhere}, self.faulty.of_boot(BOOT))
        self.assertEqual(frozenset(), self.faulty.slots([card], lambda: NEXT_BOOT))
