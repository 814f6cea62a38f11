# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from collections.abc import Mapping

from osc_lib import exceptions

from nova_gpu import data
from nova_gpu.core import names
from osc_gpu import descriptions, flavors


def describe(program: str, name: str = "SCS-8V-64-100", **more: str) -> Mapping[str, str]:
    """Return what is added to a flavor with these words, by option."""
    counts = {key: int(more.pop(key)) for key in ("gpus", "vgpus") if key in more}
    keys = {"arch": "gpu_arch", "model": "gpu:model", "vgpu_type": "vgpu_type"}
    words = {keys[key]: more.pop(key) for key in keys if key in more}
    specs = flavors.properties(counts, words, more)
    described = descriptions.of(name, [program], specs)
    assert specs.items() <= described.items()
    return {key: described[key] for key in described.keys() - specs.keys()}


class EGITest(unittest.TestCase):
    def accelerators(self, **words: str) -> tuple[str, ...]:
        described = describe("egi", **words)
        keys = ("Type", "Number", "Vendor", "Model")
        return tuple(described[f"Accelerator:{key}"] for key in keys)

    def test_what_it_says(self) -> None:
        for words, expected in (
            ({"gpus": "2", "model": "<or> h200_sxm_141gb"}, ("2", "NVIDIA", "H200 SXM 141GB")),
            ({"gpus": "1", "arch": "cdna3", "model": "MI999X"}, ("1", "AMD", "MI999X")),
            ({"vgpus": "3", "vgpu_type": "NVIDIA L40S-24Q"}, ("3", "NVIDIA", "L40S-24Q")),
            ({"vgpus": "3", "vgpu_type": "nvidia-35"}, ("3", "NVIDIA", "nvidia-35")),
            ({"vgpus": "1", "vgpu_type": "1g.18gb"}, ("1", "NVIDIA", "1g.18gb")),
        ):
            with self.subTest(words):
                self.assertEqual(("GPU", *expected), self.accelerators(**words))

    def test_what_the_flavor_leaves_open(self) -> None:
        """cASO sends nothing about a flavor without one of the four."""
        for words, reason in (
            ({"gpus": "1"}, "Accelerator:Vendor and Accelerator:Model, .*Accelerator:Vendor=NAME"),
            ({"gpus": "1", "arch": "hopper"}, "say its Accelerator:Model, without which"),
            ({"gpus": "1", "model": "<in> H100"}, "Accelerator:Model"),
            ({"gpus": "1", "arch": "<or> hopper <or> ada"}, "Accelerator:Vendor"),
            # It would count a part as a card.
            ({"vgpus": "1", "model": "Tesla P4"}, "Accelerator:Model.*vGPUs by --vgpu-type"),
            ({"vgpus": "1", "vgpu_type": "vf"}, "say its Accelerator:Vendor"),
        ):
            with (
                self.subTest(words),
                self.assertRaisesRegex(exceptions.CommandError, f"--describe-for egi: .*{reason}"),
            ):
                describe("egi", **words)
        own = {"Accelerator:Model": "H100", "Accelerator:Vendor": "NVIDIA"}
        self.assertEqual(
            {"Accelerator:Type": "GPU", "Accelerator:Number": "1"},
            describe("egi", gpus="1", **own),
        )


class SCSTest(unittest.TestCase):
    def test_architectures(self) -> None:
        for architecture, part in (("fermi", "Nf"), ("cdna3", "A3"), ("xe2", "I4")):
            described = describe("scs", gpus="1", arch=architecture)
            self.assertEqual({"scs:name-v3": f"SCS-8V-64-100_G{part}"}, described)
        known = {names.word(architecture) for _, _, architecture, _ in data.products()}
        self.assertEqual({"blackwell"}, known - descriptions._GENERATIONS.keys() - {None})

    def test_names(self) -> None:
        for name, words, expected in (
            ("SCS-8V-64-100", {"vgpus": "1", "vgpu_type": "NVIDIA L40S-24Q"}, "SCS-8V-64-100_gN"),
            ("SCS-2C-4_z3h_ib", {"gpus": "1", "model": "Tesla P4"}, "SCS-2C-4_z3h_GNp_ib"),
            ("SCS-2C-4_GNb-94-48_ib", {"gpus": "1", "arch": "blackwell"}, "SCS-2C-4_GNb-94-48_ib"),
            ("SCS-2C-4_GNa-14-6h", {"gpus": "1", "arch": "ampere"}, "SCS-2C-4_GNa-14-6h"),
        ):
            with self.subTest(name):
                self.assertEqual({"scs:name-v3": expected}, describe("scs", name, **words))

    def test_what_is_refused(self) -> None:
        for name, words, reason in (
            ("h100.1", {"arch": "hopper"}, "h100.1 is no name of SCS; begin it with its vCPUs"),
            ("SCS-8V-64", {}, "does not say whose GPUs"),
            ("SCS-8V-64_GNa", {"arch": "hopper"}, "_GNa in the flavor's name contradicts _GNg"),
            ("SCS-8V-64_gNg", {"arch": "hopper"}, "contradicts"),
        ):
            with (
                self.subTest(name),
                self.assertRaisesRegex(exceptions.CommandError, f"--describe-for scs: .*{reason}"),
            ):
                describe("scs", name, gpus="1", **words)
