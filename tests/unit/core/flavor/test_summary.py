# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core.flavor import summary
from tests.fixtures.flavor_requests import whole


class SummaryTest(unittest.TestCase):
    def text(self, **specs: str) -> str:
        return summary.all_of(whole(specs))

    def test_words_and_groups(self) -> None:
        self.assertEqual("1 GPU", self.text(gpus="1"))
        self.assertEqual(
            "2 GPUs (architecture fermi, hypervisor kvm (qemu))",
            self.text(gpus="2", gpu_arch="s== fermi", hypervisor="KVM"),
        )
        self.assertEqual(
            "1 GPU (CUSTOM_GPU_ARCH_FERMI) and 3 GPUs (not CUSTOM_GPU_ARCH_FERMI)",
            self.text(
                **{
                    "resources1:PGPU": "1",
                    "trait1:CUSTOM_GPU_ARCH_FERMI": "required",
                    "resources2:PGPU": "3",
                    "trait2:CUSTOM_GPU_ARCH_FERMI": "forbidden",
                }
            ),
        )
