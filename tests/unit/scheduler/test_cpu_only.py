# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping

from nova import test
from nova.scheduler import host_manager
from oslo_utils import uuidutils

from nova_gpu.core.scheduling import stats
from nova_gpu.core.scheduling.stats import GroupStats, Reserved
from nova_gpu.core.topology import topology
from nova_gpu.scheduler.filters import GPUFilter
from tests.fixtures import cards
from tests.fixtures.cloud_gpus import request_spec

GROUP = GroupStats("10de:1091", "fermi", "lxc", 8)


def host_state(
    free: int | None = 2, reserved: Reserved = stats.NOTHING, **used: int
) -> host_manager.HostState:
    """:param free: ``None``: a host without GPUs"""
    state = host_manager.HostState("host1", "host1", None)
    state.uuid = uuidutils.generate_uuid()
    state.hypervisor_type = "LXC"
    state.stats = {}
    if free is not None:
        cells = topology.cells(cards.placed(f"0000:{n:02x}:00.0") for n in range(free))
        report = stats.Report(stats.HostStats("LXC", (GROUP,)), (cells,), reserved)
        state.stats["nova_gpu"] = stats.dumps(report)
    state.vcpus_total, state.cpu_allocation_ratio = 8, 2.0
    state.total_usable_ram_mb, state.ram_allocation_ratio = 8192, 1.0
    state.vcpus_used = used.get("vcpus", 0)
    state.free_ram_mb = 8192 - used.get("memory_mib", 0)
    return state


class CPUOnlyTest(test.NoDBTestCase):
    def passes(self, state: host_manager.HostState, specs: Mapping[str, str] | None = None) -> bool:
        return bool(GPUFilter().host_passes(state, request_spec(specs or {})))

    def test_never(self) -> None:
        broken = host_state()
        broken.stats["nova_gpu"] = "{"
        for state in (host_state(), host_state(0), broken):
            self.assertTrue(self.passes(state))
        self.flags(cpu_only_instances="never", group="gpu")
        for state in (host_state(), host_state(0), broken):
            self.assertFalse(self.passes(state))
        self.assertTrue(self.passes(host_state(None)))
        for specs in (
            {"pci_passthrough:alias": "a1:1"},
            {"resources:VGPU": "1"},
            {"resources2:CUSTOM_FPGA": "1"},
            {"accel:device_profile": "fpga"},
        ):
            with self.subTest(specs=specs):
                self.assertTrue(self.passes(host_state(), specs))
        self.assertFalse(self.passes(host_state(), {"resources:VCPU": "1"}))

    def test_cards_in_parts(self) -> None:
        """One has room while it has room for a vGPU."""
        for free, expected in ((1, False), (0, True)):
            state, reserved = host_state(None, vcpus=14), stats.Reserved(vcpus=4)
            divided = stats.Divided(2, free, (("nvidia-63", None, 8 * free),))
            report = stats.Report(stats.HostStats("QEMU", ()), (), reserved, divided)
            state.stats["nova_gpu"] = stats.dumps(report)
            with self.subTest(free=free):
                self.flags(cpu_only_instances="last", group="gpu")
                self.assertEqual(expected, self.passes(state))
                self.flags(cpu_only_instances="never", group="gpu")
                self.assertFalse(self.passes(state))

    def test_what_free_gpus_need(self) -> None:
        """The flavor has one vCPU and 512 MiB; the host 16 and 8192 MiB in all."""
        for reserved, free, used, expected in (
            (Reserved(vcpus=4), 2, {"vcpus": 7}, True),
            (Reserved(vcpus=4), 2, {"vcpus": 8}, False),
            (Reserved(vcpus=4), 1, {"vcpus": 8}, True),
            (Reserved(vcpus=4), 0, {"vcpus": 16}, True),
            (Reserved(memory_mib=2048), 2, {"memory_mib": 3584}, True),
            (Reserved(memory_mib=2048), 2, {"memory_mib": 3585}, False),
            (stats.NOTHING, 2, {"vcpus": 16}, True),
        ):
            state = host_state(free, reserved, **used)
            with self.subTest(reserved=reserved, free=free, used=used):
                self.assertEqual(expected, self.passes(state))
                self.assertTrue(self.passes(state, {"resources:VGPU": "1"}))
