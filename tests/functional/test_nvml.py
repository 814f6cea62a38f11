# SPDX-License-Identifier: Apache-2.0
"""What NVML adds to a host's groups, as far as Placement takes it."""

from __future__ import annotations

import fixtures

from nova_gpu.core.model import PciAddress
from nova_gpu.host.nvidia import nvml
from tests.functional import alone, base

CARDS = ("0000:19:00.0", "0000:3b:00.0", "0000:4c:00.0", "0000:5d:00.0")


class NvmlTest(alone.Alone, base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.facts = nvml.NvmlFacts(memory_mib=143771, compute_capability=(9, 0))
        # No library without a card: tests/unit/host/nvidia/test_nvml.py has the real child process.
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova_gpu.host.nvidia.nvml.query",
                lambda timeout_s: {PciAddress.parse(each): self.facts for each in CARDS},
            )
        )
        self.flags(nvml=True, group="gpu")

    def traits(self) -> set[str]:
        (uuid,) = self.groups().values()
        return set(self._get_provider_traits(uuid))

    def test_a_compute_capability_that_os_traits_does_not_know(self) -> None:
        self.start_host(machine="h200-8")
        trait = "CUSTOM_HW_GPU_CUDA_COMPUTE_CAPABILITY_V9_0"
        self.assertIn(trait, self.traits())
        server = self.boot(self.flavor(**{"gpus": "= 2", f"trait:{trait}": "required"}))
        self.assertGPUs(server, CARDS[:2])
        self.assertGPUs(self.boot(self.flavor()), [])
        self.assertInventory(used=2)

    def test_one_that_it_knows(self) -> None:
        self.facts = nvml.NvmlFacts(compute_capability=(7, 0))
        self.start_host(machine="h200-8")
        self.assertIn("HW_GPU_CUDA_COMPUTE_CAPABILITY_V7_0", self.traits())
