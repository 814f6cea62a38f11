# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.flavor import request, summary
from nova_gpu.core.flavor.parsers import OnStop
from nova_gpu.core.flavor.request_group import GroupRequest
from tests.fixtures.flavor_requests import asked, whole

FERMI = "CUSTOM_GPU_ARCH_FERMI"
KEPLER = "CUSTOM_GPU_ARCH_KEPLER"


def refusal(extra_specs: dict[str, str]) -> str:
    try:
        gpu_request = request.of(extra_specs).whole
    except exception.InvalidExtraSpec as e:
        return str(e)
    raise AssertionError(f"{extra_specs} is read as {gpu_request}")


class WholeTest(unittest.TestCase):
    def test_no_gpu_asked_for(self) -> None:
        for specs in (
            {},
            {"hypervisor": "s== LXC"},
            {"hypervisor_type": "s== ironic"},
            {"resources:PGPU": "0"},
            {"resources:VGPU": "1", f"trait:{FERMI}": "required"},
            {"resources:CUSTOM_PGPU": "1"},
        ):
            with self.subTest(specs=specs):
                self.assertIsNone(request.of(specs).whole)

    def test_novas_own_keys(self) -> None:
        gpu_request = whole(
            {
                "resources:PGPU": "2",
                f"trait:{FERMI}": "required",
                f"trait:{KEPLER}": "forbidden",
                "trait:HW_GPU_API_VULKAN": "required",
                "trait:HW_CPU_X86_AVX2": "required",
                "trait_other:CUSTOM_GPU": "required",
                "trait:CUSTOM_GPU_MODEL_X": "perhaps",
            }
        )
        expected = GroupRequest("", 2, frozenset({FERMI, "HW_GPU_API_VULKAN"}), frozenset({KEPLER}))
        self.assertEqual(
            (2, (expected,), True), (gpu_request.count, gpu_request.groups, gpu_request.counted)
        )

    def test_contradictions_and_nonsense(self) -> None:
        for specs, parts in (
            ({"gpus": "= 2", "resources:PGPU": "3"}, ["gpus='= 2'", "resources:PGPU says 3"]),
            ({"gpus": "= 2", "resources:PGPU": "0"}, ["gpus='= 2'", "resources:PGPU says 0"]),
            ({"gpus": "lots"}, ["gpus='lots'"]),
            ({"resources:PGPU": "two"}, ["resources:PGPU='two'", "not a number of GPUs"]),
            ({"resources:PGPU": "1025"}, ["resources:PGPU='1025'", "from 0 to 1024"]),
            ({"resources_a:PGPU": "-2"}, ["resources_a:PGPU='-2'"]),
            *(
                ({key: value}, [f"{key}={value!r}", "asks for no GPU"])
                for key, value in (
                    *(("gpu_arch", "s== fermi"), ("gpu:model", "H200"), ("gpu:memory_mib", "1")),
                    *(("gpu:topology", "numa"), ("gpu:distribution", "pack"), ("gpu:near", "nic")),
                )
            ),
            ({"gpu_arch": "s== fermi", "resources:PGPU": "0"}, ["asks for no GPU"]),
            ({"gpus": "1", "gpu_arch": "> fermi"}, ["gpu_arch='> fermi'"]),
            ({"gpus": "1", "hypervisor": "= LXC"}, ["hypervisor='= LXC'", "numbers"]),
            (
                {"gpus": "1", "hypervisor": "s== LXC", "hypervisor_type": "s== QEMU"},
                ["hypervisor_type='s== QEMU'", "hypervisor says 's== LXC'"],
            ),
        ):
            with self.subTest(specs=specs):
                text = refusal(specs)
                for part in parts:
                    self.assertIn(part, text)

    def test_a_class_for_the_model(self) -> None:
        a2, named = "CUSTOM_GPU_MODEL_A2", {"gpus": "2", "gpu:model": "A2"}
        counted = {"resources:PGPU": "2", f"resources:{a2}": "2"}
        for specs, by_model, expected, uncounted in (
            (named, False, {"PGPU": 2}, {"PGPU": 2}),
            (named, True, {"PGPU": 2, a2: 2}, {"PGPU": 2, a2: 2}),
            ({"gpus": "2", "gpu:model": "<in> A2"}, True, {"PGPU": 2}, {"PGPU": 2}),
            (named | {"resources:PGPU": "2"}, True, {"PGPU": 2, a2: 2}, {a2: 2}),
            (named | counted, True, {"PGPU": 2, a2: 2}, {}),
            (counted, False, {"PGPU": 2, a2: 2}, {}),
            (
                {f"resources{n}:{name}": "1" for n in (1, 2) for name in ("PGPU", f"{a2}{n}")},
                *(False, {"PGPU": 2, f"{a2}1": 1, f"{a2}2": 1}, {}),
            ),
        ):
            flavor_request = request.of(specs)
            self.assertEqual(
                (expected, uncounted),
                (
                    flavor_request.counts(by_model=by_model),
                    flavor_request.uncounted(by_model=by_model),
                ),
            )
        for specs, text in (
            (named | {f"resources:{a2}": "2"}, "the same number in both, and one model"),
            (counted | {f"resources:{a2}": "1"}, "the same number in both, and one model"),
            (counted | {f"resources:{a2}0": "2"}, "the same number in both, and one model"),
            ({f"resources:{a2}": "2"}, "the same number in both, and one model"),
            ({f"resources:{a2}": "0"}, "the same number in both, and one model"),
            (
                counted | {"gpus": "2", "gpu:model": "A30"},
                "allowed: resources:CUSTOM_GPU_MODEL_A30",
            ),
        ):
            with self.assertRaisesRegex(exception.InvalidExtraSpec, text):
                request.of(specs).check()


class VGPUTest(unittest.TestCase):
    def test_how_many_and_of_what_type(self) -> None:
        for specs, count, vgpu_type, counted in (
            ({"vgpus": "= 2"}, 2, None, False),
            ({"vgpus": "1", "vgpu_type": "s== nvidia-35"}, 1, "nvidia_35", False),
            ({"vgpus": "1", "vgpu_type": "GRID M60-2Q"}, 1, "grid_m60_2q", False),
            ({"vgpus": "1", "vgpu_type": "i915-GVTg_V5_4"}, 1, "i915_gvtg_v5_4", False),
            ({"vgpus": "2", "resources:VGPU": "2"}, 2, None, True),
            ({"resources1:VGPU": "1", "resources2:VGPU": "1", "vgpu_type": "a"}, 2, "a", True),
        ):
            with self.subTest(specs):
                vgpu_request = asked(**specs)
                self.assertEqual((count, counted), (vgpu_request.count, vgpu_request.counted))
                self.assertEqual(vgpu_type, vgpu_request.type and vgpu_request.type.equal_to)


class VGPUOfEachTest(unittest.TestCase):
    """The words that whole cards have, too"""

    def test_without_whole_cards(self) -> None:
        for specs, text in (
            ({"vgpus": "1", "gpu:memory_mib": "2048"}, "1 vGPU (gpu:memory_mib >= 2048)"),
            (
                {"resources:VGPU": "1", "gpu:memory_mib": "== 1024"},
                "1 vGPU (gpu:memory_mib == 1024)",
            ),
            ({"vgpus": "2", "gpu_arch": "s!= fermi"}, "2 vGPUs (architecture s!= fermi)"),
            ({"vgpus": "1", "gpu:model": "Tesla P4"}, "1 vGPU (gpu:model tesla_p4)"),
            ({"resources:VGPU": "1", "gpu:heads": "2"}, "1 vGPU (gpu:heads >= 2)"),
        ):
            with self.subTest(specs):
                self.assertIsNone(request.of(specs).whole)
                self.assertTrue(request.of(specs).vgpu_words)
                self.assertEqual(text, summary.all_of(asked(**specs)))

    def test_beside_neither(self) -> None:
        text = "together with gpus or resources:PGPU, vgpus or resources:VGPU"
        for specs, part in (
            ({"gpu:memory_mib": "1"}, text),
            ({"vgpu_type": "a", "gpu:memory_mib": "1"}, text),
            ({"vgpus": "1", "gpu:topology": "numa"}, "together with gpus or resources:PGPU"),
            ({"vgpus": "1", "resources:PGPU": "0", "gpu_arch": "a"}, text),
        ):
            with self.subTest(specs), self.assertRaises(exception.InvalidExtraSpec) as raised:
                _ = request.of(specs).whole
            self.assertEqual(raised.exception.reason, "the flavor asks for no GPU")
            self.assertTrue(raised.exception.allowed.endswith(part))
        for specs in (
            {"resources:VGPU": "0", "gpu:memory_mib": "1"},
            {"vgpus": "1", "gpu:memory_mib": "much"},
            {"vgpus": "1", "gpu_arch": "> a"},
        ):
            with self.subTest(specs), self.assertRaises(exception.InvalidExtraSpec) as raised:
                _ = request.of(specs).vgpus
            self.assertEqual(list(specs)[1], raised.exception.key)


class FlavorRequestTest(unittest.TestCase):
    def test_a_word_is_refused_to_who_judges_it(self) -> None:
        flavor_request = request.of({"gpus": "1", "gpu:option_rom": "perhaps", "vgpu_type": "a"})
        assert flavor_request.whole
        self.assertEqual(1, flavor_request.whole.count)
        self.assertTrue(flavor_request.asks_for_gpus)
        for judge in (flavor_request.check_guest_options, flavor_request.check):
            self.assertRaises(exception.InvalidExtraSpec, judge)

    def test_whether_it_asks_at_all_however_badly(self) -> None:
        for specs, gpus, vgpus, words, cpu_only in (
            ({}, False, False, False, True),
            ({"gpus": "x"}, True, False, False, False),
            ({"resources1:PGPU": "x"}, True, False, False, False),
            ({"vgpus": "x"}, False, True, True, False),
            ({"resources:VGPU": "1"}, False, True, False, False),
            ({"resources:VGPU": "1", "gpu_arch": "x"}, False, True, True, False),
            ({"vgpu_type": "x"}, False, False, True, True),
            ({"resources:CUSTOM_FPGA": "1"}, False, False, False, False),
            ({"resources:CUSTOM_FPGA": "0", "resources:VCPU": "1"}, False, False, False, True),
            ({"accel:device_profile": "x"}, False, False, False, False),
        ):
            flavor_request = request.of(specs)
            with self.subTest(specs):
                self.assertEqual(
                    (gpus, vgpus), (flavor_request.asks_for_gpus, flavor_request.asks_for_vgpus)
                )
                self.assertEqual(
                    (words, cpu_only), (bool(flavor_request.vgpu_words), flavor_request.is_cpu_only)
                )

    def test_the_hypervisor_with_gpus_and_without(self) -> None:
        for specs, name in (
            ({}, None),
            ({"hypervisor": "LXC"}, "lxc"),
            ({"hypervisor_type": "LXC"}, None),
            ({"hypervisor_type": "LXC", "vgpus": "1"}, None),
            ({"hypervisor_type": "LXC", "gpus": "1"}, "lxc"),
        ):
            hypervisor = request.of(specs).hypervisor
            with self.subTest(specs):
                self.assertEqual(name, hypervisor and hypervisor.equal_to)
        self.assertRaises(exception.InvalidExtraSpec, request.of({"hypervisor": "= 1"}).check)


class StopTest(unittest.TestCase):
    def test_whose_word_counts(self) -> None:
        keep, release = OnStop.KEEP, OnStop.RELEASE
        for flavor, image, host, expected in (
            (None, None, keep, keep),
            (None, None, release, release),
            (None, "release", keep, keep),
            (None, "release", release, release),
            (None, "keep", release, keep),
            ("keep", "release", release, keep),
            ("release", "keep", keep, release),
            # A mistake gives nothing back, whoever says otherwise.
            ("relaese", "release", release, keep),
            (None, "relaese", release, keep),
        ):
            with self.subTest(flavor=flavor, image=image, host=host):
                flavor_request = request.of({} if flavor is None else {"gpu:on_stop": flavor})
                self.assertIs(expected is release, flavor_request.gives_back(image, host))
