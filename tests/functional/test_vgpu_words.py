# SPDX-License-Identifier: Apache-2.0
"""What flavors say of vGPUs, and what is said where no host has them."""

from __future__ import annotations

import dataclasses

from tests.fixtures import vgpu
from tests.functional import alone, divided
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

    def test_what_each_is_to_be(self) -> None:
        for words, number in (
            ({"memory_mib": ">= 8000"}, 66),
            ({"memory_mib": "== 2048"}, 64),
            ({"memory_mib": "<= 1024", "model": "<in> P4"}, 63),
        ):
            with self.subTest(words):
                server = self.boot(self.of_each(**words))
                (slot,) = self.recorded(server)
                self.assertIn(f"/nvidia-{number}/", slot)
                self.assertVGPUs(server, [slot])
                self._delete_server(server)
        resized = self.boot(self.of_each(memory_mib="== 1024"))
        self.start_host("host2")
        self._resize_server(resized, self.of_each(memory_mib="<= 4096", model="Tesla P4"))
        for words, part in (
            ({"memory_mib": "16384"}, "vGPUs with gpu:memory_mib >= 16384; there are: 1024, 2048"),
            ({"model": "A100"}, "no host has vGPUs with gpu:model a100; there are: "),
            (
                {"model": "<in> A16"},
                "no host has vGPUs with gpu:model <in> a16: those are given whole",
            ),
            ({"topology": "numa"}, "gpu:topology='numa': the flavor asks for no GPU"),
        ):
            with self.subTest(words):
                self.assertIn(part, self.boot_refused(self.of_each(**words)))
        # Beside whole cards they are about those.
        both = self.flavor(**{"vgpus": "1", "gpus": "1", "gpu:memory_mib": ">= 8000"})
        self.assertIn(
            "no host has GPUs with gpu:memory_mib >= 8000: those", self.boot_refused(both)
        )

    def test_what_the_api_refuses(self) -> None:
        for specs in (
            {"vgpus": "0"},
            {"vgpus": "many"},
            {"vgpu_type": "s!= nvidia-64"},
            {"gpu:heads": "two"},
        ):
            with self.subTest(specs):
                self.assertAnswer(400, self.flavor, **specs)


class HeadsTest(alone.Alone, divided.DividedServersTestBase):
    # nvidia-63, -64 and -65 have 1, 2 and 4; of nvidia-66 the driver does not tell.
    TYPES = tuple(
        dataclasses.replace(each, description=each.description.replace("num_heads=4, ", heads))
        for each, heads in zip(
            vgpu.TESLA_P4, ("num_heads=1, ", "num_heads=2, ", "num_heads=4, ", ""), strict=True
        )
    )

    def test_how_many_each_has(self) -> None:
        self.start_host()
        for words, number in (
            ({"heads": "== 1"}, 63),
            ({"heads": ">= 2", "memory_mib": "<= 2048"}, 64),
            ({"heads": ">= 2", "memory_mib": ">= 4096"}, 65),
            ({"heads": "4"}, 65),
        ):
            with self.subTest(words):
                server = self.boot(self.of_each(**words))
                (slot,) = self.recorded(server)
                self.assertIn(f"/nvidia-{number}/", slot)
                self._delete_server(server)
        for words, part in (
            ({"heads": "8"}, "no host has vGPUs with gpu:heads >= 8; there are: 1, 2, 4"),
            (
                {"heads": "<= 4", "memory_mib": ">= 8192"},
                "vGPUs (gpu:memory_mib >= 8192, gpu:heads <= 4): there are vGPUs for each of these",
            ),
        ):
            with self.subTest(words):
                self.assertIn(part, self.boot_refused(self.of_each(**words)))
        stray = self.flavor(**{"gpus": "1", "gpu:heads": "2"})
        self.assertIn("gpu:heads='2': the flavor asks for no vGPU", self.boot_refused(stray))
