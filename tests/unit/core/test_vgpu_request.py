# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

import os_resource_classes

from nova_gpu.core import exception, names, query, request, vgpu_request


def asked(**specs: str) -> vgpu_request.VGPURequest:
    found = vgpu_request.parse(specs)
    assert found is not None
    return found


def spelled_out(specs: dict[str, str]) -> dict[str, str] | None:
    return query.extra_specs(specs, asked(**specs), ())


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
        ):
            with self.subTest(specs), self.assertRaises(exception.InvalidExtraSpec) as raised:
                vgpu_request.parse(specs)
            self.assertIn(raised.exception.key, specs)


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

    def test_can_be_put_in_again(self) -> None:
        for specs in (
            {"vgpus": "= 2", "vgpu_type": "s== nvidia-35"},
            {"resources1:VGPU": "1", "resources2:VGPU": "1", "vgpu_type": "nvidia-35"},
            {"vgpus": "1", "resources:PGPU": "1"},
        ):
            with self.subTest(specs):
                once = spelled_out(specs)
                assert once is not None
                self.assertEqual(once, spelled_out(once))

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
