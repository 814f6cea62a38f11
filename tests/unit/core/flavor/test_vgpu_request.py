# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

import os_resource_classes

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import query, request, vgpu_request, wanted

KNOWN = {
    *(f"CUSTOM_GPU_MEMORY_MIB_{size}" for size in ("1024", "2048", "4096", "UNKNOWN")),
    *(f"CUSTOM_GPU_ARCH_{name}" for name in ("FERMI", "PASCAL", "UNKNOWN")),
    *(f"CUSTOM_GPU_HEADS_{heads}" for heads in ("1", "2", "4", "UNKNOWN")),
    "CUSTOM_GPU_MODEL_TESLA_P4",
}


def asked(**specs: str) -> vgpu_request.VGPURequest:
    found = vgpu_request.parse(specs)
    assert found is not None
    return found


def spelled_out(specs: dict[str, str]) -> dict[str, str] | None:
    return query.extra_specs(specs, asked(**specs), KNOWN)


class WordsTest(unittest.TestCase):
    def test_resource_class_is_placements(self) -> None:
        self.assertEqual(os_resource_classes.VGPU, names.VGPU_RESOURCE_CLASS)

    def test_what_is_novas_alone(self) -> None:
        for specs in ({}, {"resources:VGPU": "1"}, {"gpus": "= 1"}, {"resources1:VGPU": "x"}):
            with self.subTest(specs):
                self.assertIsNone(vgpu_request.parse(specs))

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
                found = asked(**specs)
                self.assertEqual((count, counted), (found.count, found.counted))
                self.assertEqual(vgpu_type, found.type and found.type.equal_to)

    def test_what_cannot_be(self) -> None:
        for specs in (
            {"vgpus": "0"},
            {"vgpus": "one"},
            {"vgpus": "> 1"},
            {"vgpus": "1", "resources:VGPU": "2"},
            {"vgpu_type": "nvidia-35"},
            {"vgpus": "1", "vgpu_type": "s!= nvidia-35"},
            {"vgpus": "1", "vgpu_type": "<or> nvidia-35 <or> nvidia-36"},
            {"vgpus": "1", "vgpu_type": "<in> M60"},
            {"vgpus": "1", "vgpu_type": ""},
            {"vgpus": "1", "gpu:heads": "s== 2"},
            {"vgpus": "1", "gpu:heads": "0"},
            {"gpu:heads": "2"},
            {"gpus": "1", "gpu:heads": "2"},
            {"gpu:heads": "2", "resources:VGPU": "0"},
        ):
            with self.subTest(specs), self.assertRaises(exception.InvalidExtraSpec) as raised:
                vgpu_request.parse(specs)
            self.assertIn(raised.exception.key, specs)


class OfEachTest(unittest.TestCase):
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
                self.assertIsNone(request.parse(specs))
                self.assertTrue(vgpu_request.asks_for_vgpus(specs))
                self.assertEqual(text, wanted.all_of(asked(**specs)))

    def test_beside_whole_cards(self) -> None:
        for whole in ("gpus", "resources:PGPU", "resources1:PGPU"):
            specs = {whole: "1", "vgpus": "1", "gpu_arch": "fermi", "gpu:memory_mib": "2048"}
            with self.subTest(specs):
                self.assertEqual([], list(asked(**specs).of_each()))
                found = request.parse(specs)
                assert found is not None
                self.assertEqual(
                    ["gpu_arch", "gpu:memory_mib"],
                    [key for key, _, _ in found.conditions(found.groups[0])],
                )
                self.assertEqual(
                    ["gpu:heads"],
                    [key for key, *_ in asked(**specs, **{"gpu:heads": "2"}).of_each()],
                )
                del specs["vgpus"]
                self.assertFalse(vgpu_request.asks_for_vgpus(specs))

    def test_beside_neither(self) -> None:
        text = "beside gpus or resources:PGPU, vgpus or resources:VGPU"
        for specs, part in (
            ({"gpu:memory_mib": "1"}, text),
            ({"vgpu_type": "a", "gpu:memory_mib": "1"}, text),
            ({"vgpus": "1", "gpu:topology": "numa"}, "beside gpus or resources:PGPU"),
            ({"vgpus": "1", "resources:PGPU": "0", "gpu_arch": "a"}, text),
        ):
            with self.subTest(specs), self.assertRaises(exception.InvalidExtraSpec) as raised:
                request.parse(specs)
            self.assertEqual(raised.exception.reason, "the flavor asks for no GPU")
            self.assertTrue(raised.exception.allowed.endswith(part))
        for specs in (
            {"resources:VGPU": "0", "gpu:memory_mib": "1"},
            {"vgpus": "1", "gpu:memory_mib": "much"},
            {"vgpus": "1", "gpu_arch": "> a"},
        ):
            with self.subTest(specs), self.assertRaises(exception.InvalidExtraSpec) as raised:
                vgpu_request.parse(specs)
            self.assertEqual(list(specs)[1], raised.exception.key)


class QueryTest(unittest.TestCase):
    def test_of_words_alone(self) -> None:
        specs = {"vgpus": "= 2", "vgpu_type": "s== nvidia-35"}
        self.assertEqual(
            {
                **specs,
                "resources_nova_vgpu:VGPU": "2",
                "trait_nova_vgpu:CUSTOM_GPU": "required",
                "trait_nova_vgpu:CUSTOM_GPU_VGPU_TYPE_NVIDIA_35": "required",
            },
            spelled_out(specs),
        )

    def test_of_each(self) -> None:
        for specs, traits in (
            ({"gpu:memory_mib": ">= 4096"}, {"MEMORY_MIB_4096": "required"}),
            (
                {"gpu:memory_mib": ">= 2048", "gpu_arch": "pascal"},
                {
                    "MEMORY_MIB_1024": "forbidden",
                    "MEMORY_MIB_UNKNOWN": "forbidden",
                    "ARCH_PASCAL": "required",
                },
            ),
            ({"gpu:model": "<in> P4"}, {"MODEL_TESLA_P4": "required"}),
            ({"gpu:heads": "4"}, {"HEADS_4": "required"}),
            ({"gpu:heads": "<= 2"}, {"HEADS_4": "forbidden", "HEADS_UNKNOWN": "forbidden"}),
            ({"gpu:heads": "== 3"}, {"HEADS_3": "required"}),
            ({"gpu:heads": ">= 6"}, None),
            ({"gpu:memory_mib": ">= 8192"}, None),
        ):
            words = {"vgpus": "1", **specs}
            expected = traits and {
                **words,
                "resources_nova_vgpu:VGPU": "1",
                "trait_nova_vgpu:CUSTOM_GPU": "required",
                **{f"trait_nova_vgpu:CUSTOM_GPU_{key}": traits[key] for key in traits},
            }
            with self.subTest(specs):
                self.assertEqual(expected, spelled_out(words))

    def test_can_be_put_in_again(self) -> None:
        for specs in (
            {"vgpus": "= 2", "vgpu_type": "s== nvidia-35"},
            {"resources1:VGPU": "1", "resources2:VGPU": "1", "vgpu_type": "nvidia-35"},
            {"vgpus": "1", "resources:PGPU": "1"},
            {"vgpus": "1", "gpu:memory_mib": ">= 2048", "gpu_arch": "pascal"},
            {"resources:VGPU": "1", "gpu:memory_mib": "4096"},
        ):
            with self.subTest(specs):
                once = spelled_out(specs)
                assert once is not None
                self.assertEqual(once, spelled_out(once))

    def test_traits_beside_whole_gpus(self) -> None:
        trait = {"trait:CUSTOM_GPU_ARCH_FERMI": "required"}
        for specs, suffix in (
            ({"resources:PGPU": "1", "resources:VGPU": "1"}, "_nova_gpu"),
            ({"gpus": "1", "resources:VGPU": "1"}, "_nova_gpu"),
            ({"resources1:PGPU": "1", "resources:VGPU": "1"}, "_nova_vgpu"),
            ({"gpus": "1", "resources1:PGPU": "1", "resources:VGPU": "1"}, "_nova_vgpu"),
        ):
            flavor = {**specs, **trait, "vgpu_type": "a"}
            whole, parts = request.parse(flavor), asked(**flavor)
            assert whole is not None
            both: dict[str, str] | None = flavor
            for each in (whole, parts):
                both = query.extra_specs(both or {}, each, ())
            with self.subTest(specs):
                found = [key for key in both or () if key.endswith("ARCH_FERMI")]
                self.assertEqual([f"trait{suffix}:CUSTOM_GPU_ARCH_FERMI"], found)

    def test_beside_whole_gpus(self) -> None:
        flavor = {"gpus": "1", "gpu_arch": "fermi", "vgpus": "1", "vgpu_type": "nvidia-35"}
        whole = request.parse(flavor)
        assert whole is not None
        specs = query.extra_specs(flavor, whole, ())
        assert specs is not None
        both = query.extra_specs(specs, asked(**specs), ())
        self.assertEqual(
            {
                **flavor,
                "resources_nova_gpu:PGPU": "1",
                "trait_nova_gpu:CUSTOM_GPU": "required",
                "trait_nova_gpu:CUSTOM_GPU_ARCH_FERMI": "required",
                "resources_nova_vgpu:VGPU": "1",
                "trait_nova_vgpu:CUSTOM_GPU": "required",
                "trait_nova_vgpu:CUSTOM_GPU_VGPU_TYPE_NVIDIA_35": "required",
                "group_policy": "none",
            },
            both,
        )
