# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from osc_lib import exceptions

from nova_gpu.osc import vocabulary


class RefuseUnknownTest(unittest.TestCase):
    def refuse(self, key: str, value: str, *traits: str) -> None:
        vocabulary.refuse_unknown({"gpus": "= 1", key: value}, lambda: traits)

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
                vocabulary.refuse_unknown(specs, asked)

    def test_one_that_a_host_has(self) -> None:
        self.refuse("gpu_arch", "s== mine", "CUSTOM_GPU_ARCH_MINE")

    def test_slips_of_the_pen(self) -> None:
        for key, value, said in (
            (
                "gpu_arch",
                "blackwel",
                "--arch blackwel is an arch.*; did you mean blackwell.*--prop",
            ),
            ("gpu_arch", "s!= fermy", "did you mean fermi"),
            ("gpu_arch", "zzzz", "there are: .*fermi.*kepler"),
            ("hypervisor", "xen", "--hypervisor xen is no .*; there are: kvm, lxc, qemu"),
            ("hypervisor", "lcx", "did you mean lxc"),
        ):
            with self.subTest(value), self.assertRaisesRegex(exceptions.CommandError, said):
                self.refuse(key, value)
