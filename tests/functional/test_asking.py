# SPDX-License-Identifier: Apache-2.0
"""Flavors that ask for more than a number: which model, how much memory, two kinds at once."""

from __future__ import annotations

from tests.functional import base

FERMI, KEPLER = base.FIRST_SOCKET, base.SECOND_SOCKET


class AskingTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        memory = ["10de:1091 memory_mib=5301", "10de:1023 memory_mib=11441"]
        self.flags(product=memory, group="gpu")
        self.start_host(machine="two-architectures")

    def asking(self, gpus: int = 1, **words: str) -> str:
        return self.flavor(gpus=f"= {gpus}", **{f"gpu:{key}": words[key] for key in words})

    def test_model_and_memory(self) -> None:
        traits = self._get_provider_traits(self.groups()["1023"])
        self.assertIn("CUSTOM_GPU_MODEL_TESLA_K40M", traits)
        self.assertIn("CUSTOM_GPU_MEMORY_MIB_11441", traits)
        for number, words in enumerate(
            ({"memory_mib": ">= 8000"}, {"model": "s== Tesla K40m"}, {"model": "s!= Tesla M2090"})
        ):
            with self.subTest(words=words):
                self.assertGPUs(self.boot(self.asking(**words)), [KEPLER[number]])
        server = self.boot(self.asking(memory_mib="<= 8000", model="<in> M2090"))
        self.assertGPUs(server, FERMI[:1])
        for words, part in (
            ({"memory_mib": ">= 40960"}, "gpu:memory_mib >= 40960; there are: 5301, 11441"),
            ({"model": "H200"}, "gpu:model h200; there are: tesla_k40m, tesla_m2090"),
            ({"model": "<in> K40m", "memory_mib": "<= 8000"}, "gpu:memory_mib <= 8000"),
        ):
            with self.subTest(words=words):
                self.assertIn(part, self.boot_refused(self.asking(**words)))
        fault = self.boot_refused(self.asking(2, memory_mib=">= 8000"))
        self.assertIn("2 GPUs (gpu:memory_mib >= 8000) asked for, at most 1 free", fault)

    def test_two_kinds_in_one_flavor(self) -> None:
        both = {
            "resources1:PGPU": "1",
            "trait1:CUSTOM_GPU_ARCH_FERMI": "required",
            "resources2:PGPU": "2",
            "trait2:CUSTOM_GPU_ARCH_KEPLER": "required",
        }
        server = self.boot(self.flavor(**both))
        self.assertEqual(sorted(FERMI[:1] + KEPLER[:2]), self.rendered(server))
        self.assertEqual(sorted(FERMI[:1] + KEPLER[:2]), self.recorded(server))
        self.assertEqual({"PGPU": 1}, self._get_provider_usages(self.groups()["1091"]))
        self.assertEqual({"PGPU": 2}, self._get_provider_usages(self.groups()["1023"]))
        fault = self.boot_refused(self.flavor(**both | {"resources2:PGPU": "3"}))
        self.assertIn("3 GPUs (CUSTOM_GPU_ARCH_KEPLER) asked for, at most 2 free", fault)
        del both["trait2:CUSTOM_GPU_ARCH_KEPLER"]
        nowhere = both | {"trait2:CUSTOM_GPU_ARCH_HOPPER": "required"}
        fault = self.boot_refused(self.flavor(**nowhere))
        self.assertIn("no host has GPUs with CUSTOM_GPU_ARCH_HOPPER; there are: fermi, k", fault)
        both["trait2:CUSTOM_GPU_ARCH_KEPLER"] = "required"
        # A count beside them is that of both.
        total = self.flavor(gpus="= 3", **both)
        self.assertEqual(sorted(FERMI[1:2] + KEPLER[2:]), self.recorded(self.boot(total)))
