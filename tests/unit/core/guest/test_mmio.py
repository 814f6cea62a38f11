# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from nova_gpu.core.guest import mmio

MIB = 1 << 20


class TestWindow(base.BaseTestCase):
    def test_aligned_to_the_largest(self) -> None:
        # H100 NVL: of 40 address bits and 256, 512 and 768 GiB of memory there is room for 3, 2
        # and 1 of them, so each takes 256 GiB.
        self.assertEqual(256 * mmio.GIB, mmio.window([128 * mmio.GIB, 32 * MIB]))
        self.assertEqual(512 * MIB, mmio.window([32 * MIB, 256 * MIB]))

    def test_one(self) -> None:
        self.assertEqual(32 * mmio.GIB, mmio.window([32 * mmio.GIB]))

    def test_none(self) -> None:
        self.assertEqual(0, mmio.window([]))
