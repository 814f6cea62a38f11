# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fixtures
from oslotest import base

from nova_gpu.core import device
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard, VGPUType
from nova_gpu.fabric.virt.extent import Extent
from tests.fixtures import hosts, vgpu

CARD = "0000:86:00.0"
TYPES = {
    each.id: each
    for each in (
        VGPUType("nvidia-1395", memory_mib=40960),
        VGPUType("nvidia-1396", memory_mib=81920),
        VGPUType("nvidia-1414", memory_mib=81920, slices=7),
    )
}


class ExtentTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        host.add_gpu(CARD, "10de", "2330", totalvfs=2)
        (self.function, _) = vgpu.add_functions(host, CARD, 2)
        self.extent = Extent(host.roots)
        self.extent.look_at_parts(PciAddress.parse(CARD), DividedCard(TYPES, {}))

    def card(self, text: str) -> str | None:
        found = self.extent.card(device.parse(text))
        return found and str(found)

    def test_whole(self) -> None:
        for each in (CARD, f"{self.function}/nvidia-1396/0", f"{self.function}/nvidia-1/0"):
            self.assertEqual(CARD, self.card(each))

    def test_less(self) -> None:
        for type_id in ("nvidia-1395", "nvidia-1414"):
            self.assertIsNone(self.card(f"{self.function}/{type_id}/0"))

    def test_at_no_virtual_function(self) -> None:
        self.assertIsNone(self.card(f"{CARD}/nvidia-1396/0"))
        self.assertIsNone(self.card("0000:01:00.4/nvidia-1396/0"))
        self.assertEqual(self.function, self.card(self.function))
        self.assertEqual(CARD, str(self.extent.physical(PciAddress.parse(self.function))))
