# SPDX-License-Identifier: Apache-2.0
"""What Placement is told of vGPUs that are made of GPU instances, which sysfs does not count."""

from __future__ import annotations

import dataclasses

import fixtures
from nova.tests import fixtures as nova_fixtures

from nova_gpu.host.nvidia import nvml
from tests.fixtures import hosts, vgpu
from tests.fixtures import nvml as machines
from tests.functional import alone, divided, profiled

PRO = "NVIDIA RTX Pro 6000 Blackwell DC-1"
H200, RTX = "0000:3b:00.0", "0000:41:00.0"


class MIGBackedTest(alone.Alone, divided.DividedServersTestBase):
    MACHINE = "cpu-only"

    def setUp(self) -> None:
        version = "nova.tests.fixtures.libvirt.FAKE_LIBVIRT_VERSION"
        self.useFixture(fixtures.MonkeyPatch(version, profiled.LIBVIRT))
        super().setUp()
        self.useFixture(nova_fixtures.PrivsepFixture())
        nvml.report.cache_clear()
        self.flags(nvml=True, nvml_timeout=120, health_interval=1, group="gpu")
        self.leaves = {"reserved": "types of which none is possible as the card is divided"}
        self.library = self.useFixture(machines.Library())

    def prepare(self, host: hosts.Host) -> None:
        """Types are listed as the driver does, for the GPU instances that are there and free."""
        for address, product, functions, listed in (
            (H200, "2335", 16, {1414: "NVIDIA H200X-1-18C", 1418: "NVIDIA H200X-3-71C"}),
            (RTX, "2bb5", 48, {3201: f"{PRO}-2Q", 3202: f"{PRO}-3Q", 3210: f"{PRO}-24Q"}),
        ):
            host.add_gpu(address, "10de", product, totalvfs=functions)
            for function in vgpu.add_functions(host, address, functions):
                vgpu.set_profiles(host, function, listed)

    def totals(self, product: str) -> dict[int, int]:
        self.PRODUCT = f"10de_{product}"
        return {number: total for number, (total, _, _) in self.inventories().items()}

    def test_as_many_as_the_gpu_instances_carry(self) -> None:
        self.library.say(*machines.h200_vgpu({19: 4, 9: 1}), *machines.rtx_pro_6000(4))
        self.start_host()
        self.assertEqual({1414: 4, 1418: 1}, self.totals("2335"))
        self.assertEqual({3201: 48, 3202: 32, 3210: 4}, self.totals("2bb5"))
        # The operator makes seven of the small ones; the driver's capabilities show others.
        self.library.say(*machines.h200_vgpu({19: 7}), *machines.rtx_pro_6000(4))
        self.hosts["host1"].set_mig(H200, [(number, 0) for number in range(7, 14)])
        for function in self.hosts["host1"].devices.glob("0000:3b:0*"):
            if (function / "nvidia").exists():
                vgpu.set_profiles(self.hosts["host1"], function.name, {1414: "NVIDIA H200X-1-18C"})
        self.period()
        self.assertEqual(7, self.totals("2335")[1414])
        total, reserved, _ = self.inventories()[1418]
        self.assertEqual(total, reserved)

    def test_without_nvml(self) -> None:
        self.library.say(init="!9")
        self.start_host()
        self.assertIn("nvmlInit: Driver Not Loaded", self.log())
        self.assertIn(1414, self.totals("2335"))


class OneInAGuestTest(alone.Alone, profiled.ProfiledServersTestBase):
    """NVML says how many vGPUs of a type a guest can have."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(nova_fixtures.PrivsepFixture())
        nvml.report.cache_clear()
        self.flags(nvml=True, nvml_timeout=120, health_interval=1, group="gpu")
        first, second = machines.l40s()
        named = {"0000:3b:00.0": first, "0000:af:00.0": second}
        library = self.useFixture(machines.Library())
        library.say(*(dataclasses.replace(c, address=address) for address, c in named.items()))
        self.start_host()

    def test_two(self) -> None:
        fault = self.boot_refused(self.flavor(vgpus="= 2", vgpu_type="NVIDIA L40S-1B"))
        self.assertIn("the most in one guest is 1", fault)
        split = {f"resources{n}:VGPU": "1" for n in (1, 2)} | {"group_policy": "none"}
        split |= {f"trait{n}:CUSTOM_GPU_VGPU_TYPE_NVIDIA_1145": "required" for n in (1, 2)}
        self.boot(self.flavor(**split), expected_state="ERROR")
        self.boot(self.flavor(vgpus="= 2", vgpu_type="NVIDIA L40S-24Q"))
