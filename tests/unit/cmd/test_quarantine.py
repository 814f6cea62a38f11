# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json

from nova_gpu.cmd import quarantine as command
from nova_gpu.host.state import quarantine
from tests.fixtures import cards, hosts
from tests.fixtures.bases import commands as base

CARD = "0000:04:00.0"


class QuarantineTest(base.HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = self.root / "gpu-quarantine"

    def put(self) -> None:
        entry = quarantine.entry(cards.card(CARD), "it has a stain", "wipe it")
        quarantine.put(self.folder, entry)

    def listed(self, *, as_json: bool = False) -> str:
        return self.printed(0, lambda: command.listed(self.folder, as_json=as_json))

    def release(self, status: int) -> str:
        return self.printed(status, lambda: command.release(self.folder, CARD))

    def test_nothing(self) -> None:
        self.assertEqual("No card is in quarantine.\n", self.listed())
        self.assertEqual("[]\n", self.listed(as_json=True))
        self.assertIn(f"GPU {CARD} is not in quarantine", self.release(1))

    def test_listed_and_released(self) -> None:
        self.put()
        self.assertRegex(self.listed(), rf"^{CARD} \(10de:2335\): since 20.*: it has a stain; wipe")
        (entry,) = json.loads(self.listed(as_json=True))
        self.assertEqual((CARD, "it has a stain"), (entry["address"], entry["reason"]))
        self.assertRegex(self.release(0), rf"^Released: {CARD} \(10de:2335\): since 20.*stain")
        self.assertEqual({}, quarantine.load(self.folder))


class CommandLineTest(base.CommandTestCase):
    def setUp(self) -> None:
        super().setUp()
        hosts.Host(self.root).add_gpu(CARD, "10de", "2335", driver="nvidia")

    def test_listed_by_both_commands(self) -> None:
        self.configure("lxc")
        entry = quarantine.entry(cards.card(CARD), "it has a stain", "wipe it")
        quarantine.put(self.root / "gpu-quarantine", entry)
        (card,) = json.loads(self.nova_gpu("list", "--json").stdout)
        self.assertFalse(card["offered"])
        self.assertIn("it has a stain; wipe it", card["reason"])
        self.assertIn("it has a stain; wipe it", self.nova_gpu("quarantine", "list").stdout)
        self.assertEqual(0, self.nova_gpu("quarantine", "release", CARD).returncode)
        self.assertEqual(2, self.nova_gpu("quarantine", "release", "nonsense").returncode)
        self.assertEqual(2, self.nova_gpu("quarantine", "release").returncode)

    def test_card_that_could_not_be_given(self) -> None:
        """It is offered again soon, unless it is in quarantine too."""
        self.configure("kvm")
        entry = quarantine.entry(cards.card(CARD), "it is in use by X (pid 1)", "end that first")
        quarantine.put(self.root / "gpu-unbound", entry)
        (card,) = json.loads(self.nova_gpu("list", "--json").stdout)
        self.assertFalse(card["offered"])
        self.assertIn("could not be bound for a guest at 20", card["reason"])
        self.assertIn("in use by X (pid 1); end that first", card["reason"])
