# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from osc_lib import exceptions

from nova_gpu.core.flavor import request
from osc_gpu import flavors


class PropertiesTest(unittest.TestCase):
    def test_the_blueprints_flavor_counted(self) -> None:
        specs = flavors.properties({"gpus": 2}, {"gpu_arch": "fermi", "hypervisor": "LXC"}, {})
        self.assertEqual(
            {
                "gpus": "= 2",
                "gpu_arch": "s== fermi",
                "hypervisor": "s== LXC",
                "resources:PGPU": "2",
            },
            specs,
        )
        gpu_request = request.of(specs).whole
        assert gpu_request
        self.assertTrue(gpu_request.counted)

    def test_vgpus(self) -> None:
        words = {"vgpu_type": "GRID P4-2Q", "gpu:memory_mib": ">= 2048", "gpu:heads": "4"}
        specs = flavors.properties({"gpus": None, "vgpus": 2}, words, {})
        self.assertEqual({"vgpus": "= 2", "resources:VGPU": "2", **words}, specs)
        vgpu_request = request.of(specs).vgpus
        assert vgpu_request
        self.assertTrue(vgpu_request.counted)
        self.assertEqual(
            "s== vf", flavors.properties({"vgpus": 1}, {"vgpu_type": "vf"}, {})["vgpu_type"]
        )

    def test_what_the_scheduler_would_refuse(self) -> None:
        for arguments, text in (
            (({"gpus": 0}, {}, {}), "for no GPU leave the property out"),
            (({"gpus": 1}, {"hypervisor": ">= LXC"}, {}), "compares numbers"),
            (({"gpus": 2}, {}, {"resources:PGPU": "3"}), "contradicts the options"),
            (({"gpus": 2}, {}, {"resources1:PGPU": "1"}), "says 3"),
            (({"gpus": 1}, {"vgpu_type": "nvidia-35"}, {}), "asks for no vGPU"),
            (({"vgpus": 1}, {"gpu:memory_mib": "4 GiB"}, {}), "4 GiB"),
            (({"gpus": None, "vgpus": None}, {"gpu_arch": "fermi"}, {}), "--gpus, --vgpus or both"),
        ):
            with (
                self.subTest(arguments=arguments),
                self.assertRaisesRegex(exceptions.CommandError, text),
            ):
                flavors.properties(*arguments)


class RefuseUnknownTest(unittest.TestCase):
    def refuse(self, key: str, value: str, *traits: str) -> None:
        flavors.refuse_unknown({"gpus": "= 1", key: value}, lambda: traits)

    def test_known(self) -> None:
        def asked() -> list[str]:
            raise AssertionError("the table has all of them")

        for specs in (
            {},
            {"gpu_arch": "s== blackwell", "hypervisor": "LXC"},
            {"gpu_arch": "<or> Fermi <or> kepler", "hypervisor": "kvm"},
            {"gpu_arch": "<in> well"},
        ):
            with self.subTest(specs):
                flavors.refuse_unknown(specs, asked)

    def test_slips_of_the_pen(self) -> None:
        for key, value, message in (
            (
                "gpu_arch",
                "blackwel",
                "--arch blackwel is an unknown architecture; did you mean blackwell.* "
                r"\(for one that no host has yet: --property gpu_arch='s== NAME'\)$",
            ),
            ("gpu_arch", "s!= fermy", "did you mean fermi"),
            ("gpu_arch", "zzzz", "there are: .*fermi.*kepler"),
            ("hypervisor", "xen", "--hypervisor xen is no .*; there are: kvm, lxc, qemu"),
            ("hypervisor", "lcx", "did you mean lxc"),
        ):
            with self.subTest(value), self.assertRaisesRegex(exceptions.CommandError, message):
                self.refuse(key, value)
