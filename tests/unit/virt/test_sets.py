# SPDX-License-Identifier: Apache-2.0
"""What a host offers where nothing is installed that joins cards"""

from __future__ import annotations

import fixtures

from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind, Parent, VGPUType
from nova_gpu.virt import sets
from tests.fixtures.bases.host import HostTestCase

MODULE, PLUGGED = "0000:86:00.0", "0000:3b:00.0"


class UnjoinedTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(MODULE, "10de", "2330")  # H100 SXM5
        self.host.add_gpu(PLUGGED, "10de", "2331")  # H100 PCIe
        self.host.add_device("0000:05:00.0", "10de", "22a3", class_code=0x068000)  # an NVSwitch
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.core.extensions.SETS", "nova_gpu.gone.door"))
        self.sets = sets.of_machines(self.host.roots, None)

    def card(self, address: str) -> GPU:
        return next(card for card in self.host.gpus() if str(card.address) == address)

    def test_a_module_of_a_board_is_not_given(self) -> None:
        reason = self.sets.why_not(self.card(MODULE)) or ""
        self.assertIn("is a module of an HGX board: nova_gpu.fabric", reason)
        self.assertIsNone(self.sets.why_not(self.card(PLUGGED)))

    def test_nor_is_a_vgpu_that_is_all_of_it(self) -> None:
        function = PciAddress.parse(MODULE)
        types = {
            "nvidia-1": VGPUType("nvidia-1", "whole", per_card=1),
            "nvidia-2": VGPUType("nvidia-2", "half", per_card=2),
        }
        divided = DividedCard(types, {function: Parent(Kind.MEDIATED, {}, {})})
        self.assertEqual({"nvidia-1"}, self.sets.look_at_parts(self.card(MODULE), divided).keys())
        self.assertEqual({}, self.sets.look_at_parts(self.card(PLUGGED), divided))

        withheld = sets.withheld(self.sets, self.card(MODULE), divided)
        self.assertEqual({"nvidia-1"}, withheld.keys())
        self.assertEqual({}, sets.withheld(self.sets, self.card(PLUGGED), divided))

    def test_any_other_card_is(self) -> None:
        free = [PciAddress.parse(PLUGGED)]
        self.assertIsNone(self.sets.choose(free, 1))
        self.assertEqual({}, sets.room(self.sets, free))
