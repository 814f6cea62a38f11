# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core.flavor import query
from tests.fixtures.flavor_requests import asked, whole

KNOWN = frozenset(
    {"CUSTOM_GPU", "CUSTOM_GPU_HYPERVISOR_LXC", "CUSTOM_GPU_HYPERVISOR_QEMU"}
    | {f"CUSTOM_GPU_ARCH_{name}" for name in ("FERMI", "KEPLER", "CDNA3", "UNKNOWN")}
)


def spelled_out(flavor: dict[str, str], known: frozenset[str] = KNOWN) -> dict[str, str] | None:
    """What is added to *flavor*, beside an image that names traits of GPUs."""
    specs = query.extra_specs(flavor, whole(flavor), known, image_says=True)
    if specs is None:
        return None
    return {key: value for key, value in specs.items() if flavor.get(key) != value}


class ExtraSpecsTest(unittest.TestCase):
    def test_conditions_as_traits(self) -> None:
        arch = "trait:CUSTOM_GPU_ARCH_"
        for text, traits in (
            ("s== fermi", {f"{arch}FERMI": "required"}),
            ("s== volta", {f"{arch}VOLTA": "required"}),
            ("s== xe-hpc", {f"{arch}XE_HPC": "required"}),
            ("<or> fermi <or> volta", {f"{arch}FERMI": "required"}),
            (
                "<or> fermi <or> kepler",
                {f"{arch}CDNA3": "forbidden", f"{arch}UNKNOWN": "forbidden"},
            ),
            ("s!= fermi", {f"{arch}FERMI": "forbidden", f"{arch}UNKNOWN": "forbidden"}),
            ("s!= volta", {f"{arch}UNKNOWN": "forbidden"}),
            ("<in> dna", {f"{arch}CDNA3": "required"}),
            ("<in> x", None),
            ("<or> volta <or> ada", None),
        ):
            with self.subTest(text=text):
                added = spelled_out({"gpus": "1", "gpu_arch": text})
                if traits is None:
                    self.assertIsNone(added)
                else:
                    self.assertEqual(
                        {"resources:PGPU": "1", "trait:CUSTOM_GPU": "required"} | traits, added
                    )

    def test_model_memory_and_topology_as_traits(self) -> None:
        known = KNOWN | {
            *("CUSTOM_GPU_MODEL_A100_SXM4_80GB", "CUSTOM_GPU_MODEL_H200"),
            *(f"CUSTOM_GPU_MEMORY_MIB_{size}" for size in ("5301", "81920", "143771", "UNKNOWN")),
            *(f"CUSTOM_GPU_NUMA_ISLAND_{size}" for size in (1, 4)),
            *(f"CUSTOM_GPU_NVLINK_ISLAND_{size}" for size in (1, 2, 4, 8)),
        }
        nvlink = {"gpus": "4", "gpu:topology": "nvlink"}
        for words, traits in (
            ({"gpus": "1", "gpu:model": "s== A100 SXM4 80GB"}, {"MODEL_A100_SXM4_80GB": 1}),
            ({"gpus": "1", "gpu:model": "<in> A100"}, {"MODEL_A100_SXM4_80GB": 1}),
            ({"gpus": "1", "gpu:model": "<in> V100"}, None),
            (
                {"gpus": "1", "gpu:memory_mib": ">= 40960"},
                {"MEMORY_MIB_5301": 0, "MEMORY_MIB_UNKNOWN": 0},
            ),
            ({"gpus": "1", "gpu:memory_mib": ">= 100000"}, {"MEMORY_MIB_143771": 1}),
            ({"gpus": "1", "gpu:memory_mib": ">= 200000"}, None),
            ({"gpus": "1", "gpu:memory_mib": "== 81920"}, {"MEMORY_MIB_81920": 1}),
            (nvlink, {"NVLINK_ISLAND_1": 0, "NVLINK_ISLAND_2": 0}),
            (nvlink | {"gpus": "8"}, {"NVLINK_ISLAND_8": 1}),
            (nvlink | {"gpus": "9"}, None),
            (nvlink | {"gpus": "1"}, {}),
            (nvlink | {"gpu:topology_policy": "preferred"}, {}),
            ({"gpus": "4", "gpu:topology": "numa"}, {"NUMA_ISLAND_4": 1}),
        ):
            with self.subTest(words=words):
                added = spelled_out(words, known)
                if traits is None:
                    self.assertIsNone(added)
                    continue
                expected = {
                    f"trait:CUSTOM_GPU_{trait}": "required" if is_required else "forbidden"
                    for trait, is_required in traits.items()
                }
                expected |= {"resources:PGPU": words["gpus"], "trait:CUSTOM_GPU": "required"}
                self.assertEqual(expected, added)

    def test_beside_a_second_device_also_where_the_image_names_traits(self) -> None:
        flavor = {
            "gpus": "= 2",
            "gpu_arch": "fermi",
            "resources:PGPU": "2",
            "resources:VGPU": "1",
            "trait:CUSTOM_GPU_MODEL_X": "required",
            "trait:HW_CPU_X86_AVX2": "required",
        }
        gpu_request = whole(flavor)
        for image_says in (False, True):
            self.assertEqual(
                {
                    "gpus": "= 2",
                    "gpu_arch": "fermi",
                    "resources:VGPU": "1",
                    "resources_nova_gpu:PGPU": "2",
                    "trait_nova_gpu:CUSTOM_GPU": "required",
                    "trait_nova_gpu:CUSTOM_GPU_ARCH_FERMI": "required",
                    "trait_nova_gpu:CUSTOM_GPU_MODEL_X": "required",
                    "trait:HW_CPU_X86_AVX2": "required",
                },
                query.extra_specs(flavor, gpu_request, KNOWN, image_says=image_says),
            )

    def test_a_class_for_the_model_is_in_the_group_of_the_gpus(self) -> None:
        """In the unsuffixed group another provider could serve it."""
        a2 = "CUSTOM_GPU_MODEL_A2"
        group = {"resources_nova_gpu:PGPU": "2", f"resources_nova_gpu:{a2}": "2"}
        named = {"gpus": "2", "gpu:model": "A2"}
        counted = named | {"resources:PGPU": "2", f"resources:{a2}": "2"}
        for flavor, kwargs, expected in (
            (named, {"by_model": True}, group),
            (counted, {}, group),
            (counted, {"image_says": True}, group),
            (named, {"by_model": True, "image_says": True}, {"resources:PGPU": "2"}),
            (named, {}, {"resources_nova_gpu:PGPU": "2"}),
        ):
            specs: dict[str, str] | None = flavor
            for _ in range(2):
                specs = query.extra_specs(specs or {}, whole(specs or {}), KNOWN, **kwargs)
            resources = {key: n for key, n in (specs or {}).items() if key.startswith("resources")}
            self.assertEqual(expected, resources)


VGPU_KNOWN = {
    *(f"CUSTOM_GPU_MEMORY_MIB_{size}" for size in ("1024", "2048", "4096", "UNKNOWN")),
    *(f"CUSTOM_GPU_ARCH_{name}" for name in ("FERMI", "PASCAL", "UNKNOWN")),
    *(f"CUSTOM_GPU_HEADS_{heads}" for heads in ("1", "2", "4", "UNKNOWN")),
    "CUSTOM_GPU_MODEL_TESLA_P4",
}


class VGPUQueryTest(unittest.TestCase):
    def test_of_each(self) -> None:
        known = {"MEMORY_MIB_1024": "forbidden", "MEMORY_MIB_UNKNOWN": "forbidden"}
        for specs, traits in (
            ({"gpu:memory_mib": ">= 4096"}, {"MEMORY_MIB_4096": "required"}),
            (
                {"gpu:memory_mib": ">= 2048", "gpu_arch": "pascal"},
                known | {"ARCH_PASCAL": "required"},
            ),
            ({"gpu:model": "<in> P4"}, {"MODEL_TESLA_P4": "required"}),
            ({"gpu:heads": "4"}, {"HEADS_4": "required"}),
            ({"gpu:heads": "<= 2"}, {"HEADS_4": "forbidden", "HEADS_UNKNOWN": "forbidden"}),
            ({"gpu:heads": "== 3"}, {"HEADS_3": "required"}),
            ({"gpu:heads": ">= 6"}, None),
            ({"gpu:memory_mib": ">= 8192"}, None),
        ):
            words = {"vgpus": "1", **specs}
            group = {"resources_nova_vgpu:VGPU": "1", "trait_nova_vgpu:CUSTOM_GPU": "required"}
            trait_words = traits and {
                f"trait_nova_vgpu:CUSTOM_GPU_{key}": traits[key] for key in traits
            }
            expected = None if trait_words is None else {**words, **group, **trait_words}
            with self.subTest(specs):
                self.assertEqual(expected, query.extra_specs(words, asked(**words), VGPU_KNOWN))

    def test_traits_beside_whole_gpus(self) -> None:
        trait = {"trait:CUSTOM_GPU_ARCH_FERMI": "required"}
        for specs, suffix in (
            ({"resources:PGPU": "1", "resources:VGPU": "1"}, "_nova_gpu"),
            ({"gpus": "1", "resources:VGPU": "1"}, "_nova_gpu"),
            ({"resources1:PGPU": "1", "resources:VGPU": "1"}, "_nova_vgpu"),
            ({"gpus": "1", "resources1:PGPU": "1", "resources:VGPU": "1"}, "_nova_vgpu"),
        ):
            flavor = {**specs, **trait, "vgpu_type": "a"}
            both: dict[str, str] | None = flavor
            for own_request in (whole(flavor), asked(**flavor)):
                both = query.extra_specs(both or {}, own_request, ())
            with self.subTest(specs):
                keys = [key for key in both or () if key.endswith("ARCH_FERMI")]
                self.assertEqual([f"trait{suffix}:CUSTOM_GPU_ARCH_FERMI"], keys)
