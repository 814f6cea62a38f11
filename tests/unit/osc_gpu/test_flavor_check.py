# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core.flavor import request
from osc_gpu import flavor_check, rest


class UnknownTest(unittest.TestCase):
    """Names that ``openstack gpu flavor create`` refuses"""

    def mistakes(self, *traits: str, **extra_specs: str) -> list[str]:
        return list(flavor_check._unknown(request.of(extra_specs), lambda: traits))

    def test_slips_of_the_pen(self) -> None:
        (mistake,) = self.mistakes(gpus="2", gpu_arch="s== hoper")
        self.assertEqual(
            "gpu_arch='s== hoper': hoper is an architecture that neither the table of products nor "
            "a host has; did you mean hopper?",
            mistake,
        )
        (mistake,) = self.mistakes(vgpus="1", hypervisor="lcx")
        self.assertIn("hypervisor='lcx': lcx is no hypervisor", mistake)

    def test_none(self) -> None:
        self.assertEqual([], self.mistakes(gpus="2", gpu_arch="<or> hopper <or> ada"))
        self.assertEqual([], self.mistakes("CUSTOM_GPU_ARCH_MINE", gpus="2", gpu_arch="mine"))
        self.assertEqual([], self.mistakes(gpus="2", gpu_arch="<or>"), "it cannot be parsed")
        self.assertEqual([], self.mistakes(hypervisor="vmware"), "it asks for no GPU")

    def test_who_may_not_read_what_hosts_have(self) -> None:
        def refuse() -> list[str]:
            raise rest.Refused("it is for administrators")

        flavor = request.of({"gpus": "2", "gpu_arch": "hoper"})
        self.assertEqual([], list(flavor_check._unknown(flavor, refuse)))
