# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping

from nova import exception as nova_exception
from nova import test
from nova.scheduler import host_manager
from oslo_utils import uuidutils

from nova_gpu.core.scheduling import stats
from nova_gpu.core.scheduling.stats import Reserved
from nova_gpu.core.topology import topology
from nova_gpu.scheduler.filters import GPUFilter
from tests.fixtures import cards
from tests.fixtures.cloud_gpus import FERMI, KEPLER, NAMELESS, candidate, host_state, request_spec


class GPUFilterTest(test.NoDBTestCase):
    def passes(self, state: host_manager.HostState, specs: dict[str, str]) -> bool:
        return bool(GPUFilter()._filter_one(state, request_spec(specs)))

    def test_shape(self) -> None:
        host = [FERMI, KEPLER, NAMELESS]
        for specs, groups, expected in (
            ({}, [], True),
            ({"gpus": "8"}, host, True),
            ({"gpus": "9"}, host, False),
            ({"gpus": "5", "gpu_arch": "fermi"}, host, False),
            ({"gpus": "8", "gpu_arch": "s!= fermi"}, host, True),
            ({"gpus": "8", "gpu_arch": "s!= fermi"}, [FERMI, NAMELESS], False),
            ({"resources:PGPU": "2"}, host, True),
            ({"resources1:PGPU": "8", "resources2:PGPU": "4"}, host, True),
            ({"gpus": "1"}, [], False),
            # The older spelling counts only beside gpus.
            ({"hypervisor_type": "s== QEMU"}, host, True),
            ({"hypervisor_type": "s== QEMU", "gpus": "1"}, host, False),
        ):
            with self.subTest(specs=specs, groups=groups):
                self.assertEqual(expected, self.passes(host_state(*groups), specs))

    def test_hypervisor_for_every_flavor_that_names_it(self) -> None:
        for text, lxc, qemu in (
            ("s== LXC", True, False),
            ("lxc", True, False),
            ("KVM", False, True),
            ("s== QEMU", False, True),
            ("s!= KVM", True, False),
            ("<or> LXC <or> KVM", True, True),
        ):
            for specs in ({"hypervisor": text}, {"hypervisor": text, "gpus": "1"}):
                for name, expected in (("LXC", lxc), ("QEMU", qemu)):
                    with self.subTest(specs=specs, hypervisor=name):
                        state = host_state(FERMI, hypervisor=name)
                        self.assertEqual(expected, self.passes(state, specs))

    def test_stats_that_cannot_be_read_never_match(self) -> None:
        for raw in (
            "",
            "{",
            "[]",
            '{"v": 2}',
            '{"v": 3}',
            '{"v": 1, "hypervisor": "LXC", "groups": [{}]}',
        ):
            with self.subTest(raw=raw):
                self.assertFalse(self.passes(host_state(raw=raw), {"gpus": "1"}))
                self.assertTrue(self.passes(host_state(raw=raw), {}))

    def test_a_candidate_without_the_gpus_is_dropped(self) -> None:
        state = host_state(KEPLER, gpus=2)
        state.allocation_candidates.append(candidate(4))
        self.assertTrue(self.passes(state, {"gpus": "4"}))
        self.assertEqual([candidate(4)], state.allocation_candidates)
        self.assertFalse(self.passes(state, {"gpus": "5"}))

    def test_machine_type_of_the_image(self) -> None:
        """A container has no use for it, and what the host makes of none is not known here."""
        for machine_type, qemu in (
            (None, True),
            ("q35", True),
            ("pc-q35-9.2", True),
            ("virt", True),
            ("pc", False),
            ("pc-i440fx-9.2", False),
        ):
            for hypervisor, expected in (("LXC", True), ("QEMU", qemu)):
                with self.subTest(machine_type=machine_type, hypervisor=hypervisor):
                    spec = request_spec({"gpus": "1"}, machine_type=machine_type)
                    state = host_state(KEPLER, hypervisor=hypervisor)
                    self.assertEqual(expected, GPUFilter()._filter_one(state, spec))
        plain = request_spec({}, machine_type="pc")
        self.assertTrue(GPUFilter()._filter_one(host_state(hypervisor="QEMU"), plain))

    def test_of_a_rebuild_only_the_image_is_judged(self) -> None:
        for specs, machine_type, expected in (
            ({"gpus": "9"}, None, True),
            ({"gpus": "many"}, None, True),
            ({"gpus": "9"}, "q35", True),
            ({"gpus": "9"}, "pc", False),
            ({}, "pc", True),
        ):
            with self.subTest(specs=specs, machine_type=machine_type):
                spec = request_spec(specs, machine_type=machine_type)
                spec.scheduler_hints = {"_nova_check_type": ["rebuild"]}
                state = host_state(hypervisor="QEMU")
                self.assertEqual(expected, GPUFilter()._filter_one(state, spec))


def cpu_host(
    free: int | None = 2, reserved: Reserved = stats.NOTHING, **used: int
) -> host_manager.HostState:
    """:param free: ``None``: a host without GPUs"""
    state = host_manager.HostState("host1", "host1", None)
    state.uuid = uuidutils.generate_uuid()
    state.hypervisor_type = "LXC"
    state.stats = {}
    if free is not None:
        cells = topology.cells(cards.placed(f"0000:{n:02x}:00.0") for n in range(free))
        report = stats.Report(stats.HostStats("LXC", (FERMI,)), (cells,), reserved)
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
        broken = cpu_host()
        broken.stats["nova_gpu"] = "{"
        for state in (cpu_host(), cpu_host(0), broken):
            self.assertTrue(self.passes(state))
        self.flags(cpu_only_instances="never", group="gpu")
        for state in (cpu_host(), cpu_host(0), broken):
            self.assertFalse(self.passes(state))
        self.assertTrue(self.passes(cpu_host(None)))
        # Told, but for several at once, of which Nova has claimed some by then
        spec, message = request_spec({}), "the hosts with room keep it for instances with GPUs"
        with self.assertRaisesRegex(nova_exception.NoValidHost, message):
            GPUFilter().filter_all([cpu_host(), broken], spec)
        spec.num_instances = 2
        self.assertEqual([], [*GPUFilter().filter_all([cpu_host()], spec)])
        for specs in (
            {"pci_passthrough:alias": "a1:1"},
            {"resources:VGPU": "1"},
            {"resources2:CUSTOM_FPGA": "1"},
            {"accel:device_profile": "fpga"},
        ):
            with self.subTest(specs=specs):
                self.assertTrue(self.passes(cpu_host(), specs))
        self.assertFalse(self.passes(cpu_host(), {"resources:VCPU": "1"}))

    def test_cards_in_parts(self) -> None:
        """One has room while it has room for a vGPU."""
        for free, expected in ((1, False), (0, True)):
            state, reserved = cpu_host(None, vcpus=14), stats.Reserved(vcpus=4)
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
            state = cpu_host(free, reserved, **used)
            with self.subTest(reserved=reserved, free=free, used=used):
                self.assertEqual(expected, self.passes(state))
                self.assertTrue(self.passes(state, {"resources:VGPU": "1"}))
