# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
import pathlib

import fixtures
from oslotest import base

from nova_gpu.core.model import PciAddress
from nova_gpu.fabric.host import modules
from nova_gpu.host.nvidia import nvml
from tests.fixtures import nvml as machines
from tests.fixtures.partitions import MODULES, nvml_cards

KNOWN = {PciAddress.parse(address): module for address, module in MODULES.items()}
BOARD = frozenset(KNOWN)
SOME = min(KNOWN)


class ModulesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "gpu-modules.json")

    def test_remembered(self) -> None:
        modules.keep(self.path, BOARD, KNOWN)
        self.assertEqual(KNOWN, modules.completed(self.path, BOARD, {}))
        self.assertEqual(KNOWN, modules.completed(self.path, BOARD, {SOME: KNOWN[SOME]}))

    def test_a_later_release_wrote_more(self) -> None:
        self.path.write_text(json.dumps({"modules": MODULES, "more": {"is": ["known"]}}))
        self.assertEqual(KNOWN, modules.completed(self.path, BOARD, {}))

    def test_not_before_all_are_known(self) -> None:
        modules.keep(self.path, BOARD, {SOME: KNOWN[SOME]})
        self.assertFalse(self.path.exists())

    def test_void_where_the_cards_are_at_other_addresses(self) -> None:
        modules.keep(self.path, BOARD, KNOWN)
        others = BOARD - {SOME} | {PciAddress.parse("0000:e0:00.0")}
        self.assertEqual({}, modules.completed(self.path, others, {}))
        self.assertEqual({}, modules.completed(self.path, BOARD - {SOME}, {}))

    def test_void_where_a_card_says_something_else(self) -> None:
        modules.keep(self.path, BOARD, KNOWN)
        other = {SOME: 9}
        self.assertEqual(other, modules.completed(self.path, BOARD, other))
        modules.keep(self.path, BOARD, other)
        self.assertEqual({}, modules.completed(self.path, BOARD, {}))

    def test_what_it_was_not_that_wrote_it(self) -> None:
        for text in (
            *("{}", "[]", '{"modules": 3}', '{"modules": {"here": 1}}', "nonsense"),
            '{"modules": {"0000:86:00.0": 1, "0000:87:00.0": 1}}',
        ):
            with self.subTest(text):
                self.path.write_text(text)
                board = {PciAddress.parse(a) for a in ("0000:86:00.0", "0000:87:00.0")}
                self.assertEqual({}, modules.completed(self.path, board, {}))

    def test_where_it_cannot_be_written(self) -> None:
        log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        modules.keep(self.path / "no" / "folder", BOARD, KNOWN)
        self.assertIn("Failed to save the module numbers", log.output)


class NvmlTest(base.BaseTestCase):
    def test_by_the_real_binding(self) -> None:
        (first, *_, last) = cards = nvml_cards()
        cards[-1] = dataclasses.replace(last, more={})  # one on no board
        self.useFixture(machines.Library(*cards))
        wanted = [PciAddress.parse(card.address) for card in (first, last)]
        self.assertEqual({wanted[0]: 1}, nvml.modules(wanted, 60))

    def test_where_it_fails(self) -> None:
        log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        nvml.report.cache_clear()
        self.useFixture(machines.Library()).say(init="!9")
        self.assertEqual({}, nvml.modules([SOME], 60))
        self.assertIn("NVML does not answer about", log.output)
