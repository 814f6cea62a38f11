# SPDX-License-Identifier: Apache-2.0
"""What is plain functions' own; the rest is in test_virtual_function."""

from __future__ import annotations

import fixtures
from oslotest import base

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Kind, Parent, Slot
from nova_gpu.virt.delivery import pci_aliases, plain_function
from tests.fixtures import cards, hosts

CARD, FUNCTION = "0000:c3:00.0", PciAddress.parse("0000:c3:00.1")
UUID = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"


class PlainFunctionsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        self.host.add_gpu(CARD, "8086", "56c0", totalvfs=1)
        self.host.add_vf(CARD, str(FUNCTION))
        spec = pci_aliases.DeviceSpec(())
        self.way = plain_function.PlainFunctions(self.host.roots, spec)

    def test_is_there_as_long_as_its_card_has_it(self) -> None:
        slot = Slot(FUNCTION, "vf", 0)
        self.assertTrue(self.way.is_there(slot, UUID, Parent(Kind.PLAIN, {}, {})))
        self.assertFalse(self.way.is_there(slot, UUID, None))

    def test_divided_as_the_option_says(self) -> None:
        asked: list[tuple[str, int]] = []

        def enable(card: str, number: int) -> None:
            asked.append((card, number))

        self.useFixture(fixtures.MonkeyPatch("nova_gpu.privsep.vgpu.enable_functions", enable))
        plain_function.divide(CARD, 4)
        self.assertEqual([(CARD, 4)], asked)

    def test_the_hosts_driver_must_not_take_it(self) -> None:
        card = cards.card(CARD, "xe")
        self.host.set_autoprobe(CARD, enabled=False)
        self.assertIsNone(self.way.obstacle(card, [FUNCTION]))
        self.host.set_autoprobe(CARD, enabled=True)
        self.assertIn("the host's driver would take", self.way.obstacle(card, [FUNCTION]) or "")
