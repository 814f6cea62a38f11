# SPDX-License-Identifier: Apache-2.0
"""Accelerators that are no GPUs, on a host that has some."""

from __future__ import annotations

from tests.fixtures import hosts
from tests.functional import alone, kvm

NPU = "0000:00:0b.0"


class AcceleratorTest(alone.Alone, kvm.KVMServersTestBase):
    """The NPU of an Intel processor beside AMD's MI300X, which are of the same class, and Flex."""

    def prepare(self, host: hosts.Host) -> None:
        host.add_device(NPU, "8086", "7d1d", class_code=0x120000, driver="intel_vpu")

    def test_the_npu_of_a_processor(self) -> None:
        self.start_host(machine="amd-intel")
        self.assertEqual({"74a1", "56c0"}, set(self.groups()))

    def test_one_that_an_option_names(self) -> None:
        self.flags(product_ids=["8086:7d1d"], group="gpu")
        self.start_host(machine="amd-intel")
        self.assertEqual({"7d1d"}, set(self.groups()))
        self.leaves = {"lost": "the option leaves all others out"}
