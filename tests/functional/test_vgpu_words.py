# SPDX-License-Identifier: Apache-2.0
"""What flavors say of vGPUs, and what is said where no host has them."""

from __future__ import annotations

from tests.functional import divided
from tests.functional.divided import FIRST, WHOLE, slots


class WordsTest(divided.DividedServersTestBase):
    HOSTS = ("host1",)

    def test_the_flavors_words(self) -> None:
        for words, number in (
            ({"vgpus": "= 1", "vgpu_type": "s== nvidia-64"}, 64),
            ({"vgpus": "1", "vgpu_type": "GRID P4-2Q", "hypervisor": "KVM"}, 64),
            ({"resources:VGPU": "1", "vgpu_type": "nvidia-65"}, 65),
        ):
            with self.subTest(words):
                server = self.boot(self.flavor(**words))
                self.assertEqual({"host1": 1}, self.allocated(server, "VGPU"))
                (slot,) = self.recorded(server)
                self.assertIn(f"/nvidia-{number}/", slot)
                self.assertVGPUs(server, [slot])
        both = self.boot(self.flavor(vgpus="= 1", vgpu_type="nvidia-64", gpus="= 1"))
        self.assertEqual([*slots(FIRST, 64, 2), WHOLE], self.recorded(both))
        self.assertEqual([WHOLE], self.rendered(both))
        fault = self.boot_refused(self.flavor(vgpus="= 1", vgpu_type="nvidia-35"))
        self.assertIn("no host has vGPUs with vgpu_type nvidia_35; there are: grid_p4_1q", fault)
        fault = self.boot_refused(self.flavor(vgpus="= 9", vgpu_type="nvidia-64"))
        self.assertIn("no host has 9 vGPUs (type nvidia_64): the most in one host is 8", fault)
        self.period()
        fault = self.boot_refused(self.flavor(vgpus="= 3", vgpu_type="nvidia-65"))
        self.assertIn("3 vGPUs (type nvidia_65) asked for, at most 1 free", fault)
        fault = self.boot_refused(self.flavor(vgpus="= 1", hypervisor="LXC"))
        self.assertIn("No valid host", fault)
