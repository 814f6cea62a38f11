# SPDX-License-Identifier: Apache-2.0
"""All that is wrong with a flavor"""

from __future__ import annotations

import unittest

from nova_gpu.core.flavor import request, validation


class MistakesTest(unittest.TestCase):
    def found(self, **specs: str) -> list[str]:
        return [mistake.partition("=")[0] for mistake in validation.mistakes(request.of(specs))]

    def test_none(self) -> None:
        for specs in (
            {"gpus": "= 2", "gpu_arch": "s== fermi", "hypervisor": "s== LXC"},
            {"gpus": "2", "gpu:model": "s!= tesla", "resources:PGPU": "2"},
            {"hypervisor_version": ">= 1000", "cpu_arch": "x86_64", "hw:cpu_policy": "shared"},
            {"vgpus": "1", "vgpu_type": "nvidia-35"},
            {},
        ):
            with self.subTest(specs=specs):
                self.assertEqual([], validation.mistakes(request.of(specs)))

    def test_every_one_and_no_consequence(self) -> None:
        specs = {
            "gpus": "two",
            "gpu_arch": "s< fermi",
            "hypervisor": ">= 1",
            "gpu:memory_mib": "much",
            "gpu:option_rom": "maybe",
            "gpu:guest_topology": "maybe",
            "gpu:on_stop": "maybe",
        }
        self.assertEqual(specs.keys(), set(self.found(**specs)))
        self.assertEqual(["gpu_arch"], self.found(gpu_arch="fermi"))
        listed = {"gpus": "1", "gpu:model": "s!= K80, P40"}
        self.assertEqual(["gpu:model"], self.found(**listed))
        request.of(listed).check()  # as an instance may have it, made before that was refused
        self.assertEqual(["gpus"], self.found(**{"gpus": "2", "resources:PGPU": "3"}))
        self.assertEqual(
            ["resources:PGPU", "gpu_arch"],
            self.found(**{"resources:PGPU": "x", "gpu_arch": "s< a"}),
        )

    def test_a_number_of_vgpus_that_nova_ignores(self) -> None:
        for value, hint in (("vgpu:1", "write 1"), ("vgpu", "write a number"), ("", "a number")):
            with self.subTest(value):
                (mistake,) = validation.mistakes(request.of({"resources:VGPU": value}))
                self.assertIn(f"resources:VGPU={value!r}: it is no number", mistake)
                self.assertIn(hint, mistake)
        self.assertEqual([], validation.mistakes(request.of({"resources:VGPU": "1"})))
        self.assertEqual(1, len(self.found(**{"resources:VGPU": "x", "vgpus": "1"})))

    def test_the_flavor_contradicts_itself(self) -> None:
        specs = {"gpus": "1", "gpu_arch": "fermi", "trait:CUSTOM_GPU_ARCH_FERMI": "forbidden"}
        self.assertEqual(["trait:CUSTOM_GPU_ARCH_FERMI"], self.found(**specs))
        kepler = "trait:CUSTOM_GPU_ARCH_KEPLER"
        for word in ("gpu_arch", "trait:CUSTOM_GPU_ARCH_TESLA"):
            value = "required" if ":" in word else "fermi"
            (mistake,) = validation.mistakes(
                request.of({"gpus": "1", word: value, kepler: "required"})
            )
            self.assertIn(
                f"{kepler}='required': no GPU has it as well as CUSTOM_GPU_ARCH_", mistake
            )
        # Each of two groups may have its own.
        groups = {"resources1:PGPU": "1", "resources2:PGPU": "1", "group_policy": "none"}
        traits = {f"trait1{kepler[5:]}": "required", "trait2:CUSTOM_GPU_ARCH_TESLA": "required"}
        self.assertEqual([], self.found(**groups, **traits))
        # One that no key of the flavor's own stands for ends the search, and is told.
        self.assertTrue(self.found(**specs, **{"resources:VGPU": "1"}))

    def test_misspelt(self) -> None:
        for key, text in (
            ("gpu", "did you mean gpus?"),
            ("gpu_count", "did you mean gpus?"),
            ("num_gpus", "did you mean gpus?"),
            ("resource:PGPU", "did you mean gpus?"),
            ("resources:GPU", "did you mean gpus?"),
            ("resources:PGPU ", "did you mean gpus?"),
            ("GPU_Arch", "did you mean gpu_arch?"),
            ("gpu:modle", "did you mean gpu:model?"),
            ("GPU:Model", "did you mean gpu:model?"),
            ("gpu:nothing_like_it", "there are: gpu:distribution, gpu:guest_topology"),
        ):
            with self.subTest(key=key):
                (mistake,) = validation.mistakes(request.of({key: "1"}))
                self.assertIn(f"{key}='1': unknown property; {text}", mistake)


class VGPUTest(unittest.TestCase):
    def test_what_is_not(self) -> None:
        for specs, keys in (
            ({"vgpus": "many", "vgpu_type": "s!= nvidia-35"}, ["vgpus", "vgpu_type"]),
            ({"vgpus": "many", "vgpu_type": "nvidia-35"}, ["vgpus"]),
            ({"vgpu_type": "nvidia-35"}, ["vgpu_type"]),
            ({"vgpus": "2", "resources:VGPU": "1"}, ["vgpus"]),
            ({"vgpus": "2", "resources:VGPU": "3"}, ["vgpus"]),
            ({"resources:VGPU": "x", "vgpu_type": "nvidia-35"}, ["resources:VGPU"]),
            ({"resources:VGPU": "x", "gpu:memory_mib": "1"}, ["resources:VGPU"]),
            (
                {"vgpus": "1", "gpu:memory_mib": "much", "gpu_arch": "> a"},
                ["gpu_arch", "gpu:memory_mib"],
            ),
            ({"vgpus": "1", "gpu:topology": "numa"}, ["gpu:topology"]),
            ({"vgpus": "many", "gpu:heads": "2"}, ["vgpus"]),
            ({"gpus": "1", "gpu:heads": "2"}, ["gpu:heads"]),
            ({"vgpus": "1", "gpu:head": "2"}, ["gpu:head"]),
            ({"gpus": "1", "gpu:vgpu_params": "enable_uvm=1"}, ["gpu:vgpu_params"]),
            ({"vgpus": "1", "gpu:vgpu_params": "enable_uvm=1,a=0"}, []),
            ({"vgpus": "1", "gpu:vgpu_params": "enable_uvm"}, ["gpu:vgpu_params"]),
            ({"vgpus": "1", "gpu:vgpu_params": "a=1,a=2"}, ["gpu:vgpu_params"]),
        ):
            with self.subTest(specs):
                mistakes = [
                    text.partition("=")[0] for text in validation.mistakes(request.of(specs))
                ]
                self.assertEqual(keys, mistakes)
