# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core.scheduling import stranding
from nova_gpu.core.scheduling.stats import Reserved


class StrandedTest(unittest.TestCase):
    def test_table(self) -> None:
        for vcpus, memory, free, reserved, part in (
            (16, 65536, 4, Reserved(4, 16384), None),
            (15, 65536, 4, Reserved(4, 16384), "15 vCPUs would be left, and 4 free GPUs need 4"),
            (16, 65535, 4, Reserved(4, 16384), "65535 MiB of memory would be left"),
            (15, 65535, 3, Reserved(4, 16384), None),
            (-3.5, 0, 0, Reserved(4, 16384), None),
            (-3.5, 0, 1, Reserved(4, 0), "0 vCPUs"),
            (0, 0, 8, Reserved(), None),
        ):
            with self.subTest(vcpus=vcpus, memory=memory, free=free):
                reason = stranding.stranded(vcpus, memory, free, reserved)
                if part is None:
                    self.assertIsNone(reason)
                else:
                    self.assertIn(part, reason or "no reason")
