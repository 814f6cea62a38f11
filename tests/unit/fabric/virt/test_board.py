# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fixtures
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.fabric.virt import board
from nova_gpu.host.pci import discovery
from tests.fixtures import hosts, nvfm, partitions
from tests.fixtures import nvml as machines

FIRST = PciAddress.parse("0000:86:00.0")


class BoardTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(config_fixture.Config(CONF))
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        self.kept = self.host.root / "gpu-modules.json"

    def machine(self) -> nvfm.FabricManager:
        partitions.build(self.host)
        self.useFixture(machines.Library(*partitions.nvml_cards()))
        return self.useFixture(nvfm.FabricManager(partitions.H100))

    def read(self) -> board.Board | None:
        return board.read(self.gpus(), self.host.roots, self.kept, board.manager())

    def keep(self) -> None:
        board.keep_modules(self.gpus(), self.host.roots, self.kept)

    def gpus(self) -> tuple[GPU, ...]:
        return discovery.cards_at(map(PciAddress.parse, partitions.MODULES), self.host.roots)

    def test_cards_without_switches(self) -> None:
        for address in partitions.MODULES:
            self.host.add_gpu(address, "10de", "2330")
        self.assertIsNone(self.read())
        self.keep()
        self.assertFalse(self.kept.exists())

    def test_a_board(self) -> None:
        self.machine()
        found = self.read()
        assert found
        self.assertEqual([], found.faults())
        self.assertEqual([0, 1, 3, 7], [each.id for each in found.partitions_of(FIRST)])
        self.assertEqual(15, len(found.cards_of()))
        self.assertEqual({FIRST}, found.cards_of()[7])

    def test_fabric_manager_is_down(self) -> None:
        self.machine().says("connect -9")
        found = self.read()
        assert found
        self.assertIn("it does not answer", "; ".join(found.faults()))
        self.assertEqual([], found.partitions_of(FIRST))
        self.assertEqual({}, found.cards_of())

    def test_modules_are_kept_for_when_guests_have_the_cards(self) -> None:
        self.machine()
        self.keep()
        for address in partitions.MODULES:
            self.host.bind(address, "vfio-pci")
        found = self.read()
        assert found
        self.assertEqual(1, found.modules[FIRST])
        self.assertEqual([], found.faults())
