# SPDX-License-Identifier: Apache-2.0
"""The flavor's words, from the API that takes them to the fault of who cannot be served."""

from __future__ import annotations

from unittest import mock

from nova_gpu.core.flavor import condition
from nova_gpu.core.flavor.parsers import ALLOWED_COUNTS
from tests.functional import base

FERMI, KEPLER = base.FIRST_SOCKET, base.SECOND_SOCKET


class WordsAtTheAPITest(base.GPUServersTestBase):
    def test_taken_and_refused(self) -> None:
        """A refusal has key, value and what is allowed."""
        for words in (
            base.BLUEPRINT,
            {"hypervisor": "KVM", "hypervisor_type": "s== ironic"},
            {"gpu:model": "A100 SXM4 80GB", "gpu:memory_mib": ">= 40960"},
            {"resources:PGPU": "2", "trait:CUSTOM_GPU_ARCH_FERMI": "required"},
        ):
            with self.subTest(words=words):
                flavor = self.flavor(**words)
                self.assertEqual(words, self.admin_api.get_extra_specs(flavor))
        for key, value, allowed in (
            ("gpus", "<= 2", ALLOWED_COUNTS),
            ("gpu_arch", "<all-in> fermi kepler", condition.ALLOWED_NAMES),
            ("hypervisor_type", "s==", condition.ALLOWED_NAMES),
            ("gpu:memory_mib", "40 GiB", condition.ALLOWED_NUMBERS),
            ("gpu:topology", "socket", "any or numa or nvlink"),
        ):
            with self.subTest(key=key, value=value):
                text = self.assertAnswer(400, self.flavor, **{key: value})
                for part in (key, repr(value), allowed):
                    self.assertIn(part, text)

    def test_what_the_scheduler_refuses(self) -> None:
        """What the API took before the microversion, and words that disagree"""
        self.start_host()
        with mock.patch.object(self.api_fixture.admin_api, "microversion", "2.85"):
            flavor = self.flavor(gpus="rubbish")
        fault = self.boot_refused(flavor)
        for part in ("gpus='rubbish'", "not a whole number", ALLOWED_COUNTS):
            self.assertIn(part, fault)
        for words, part in (
            ({"gpus": "= 2", "resources:PGPU": "3"}, "resources:PGPU says 3"),
            ({"gpu_arch": "s== fermi"}, "the flavor asks for no GPU"),
        ):
            with self.subTest(words=words):
                self.assertIn(part, self.boot_refused(self.flavor(**words)))
        self.boot(self.flavor(hypervisor="s== LXC"))
        self.boot_refused(self.flavor(hypervisor="s== KVM"))


class AskingTest(base.GPUServersTestBase):
    """Flavors that ask for more than a number, on a host with two architectures"""

    def test_conditions_and_two_kinds(self) -> None:
        memory = ["10de:1091 memory_mib=5301", "10de:1023 memory_mib=11441"]
        self.flags(product=memory, group="gpu")
        self.start_host(machine="two-architectures")
        traits = self._get_provider_traits(self.groups()["1023"])
        self.assertIn("CUSTOM_GPU_MODEL_TESLA_K40M", traits)
        self.assertIn("CUSTOM_GPU_MEMORY_MIB_11441", traits)
        self.boot_refused(self.gpu_flavor(5))  # none gets two architectures
        for words, card in (
            ({"gpu:memory_mib": ">= 8000", "gpu_arch": "<in> epl"}, KEPLER[0]),
            ({"gpu:memory_mib": "<= 8000", "gpu:model": "<in> M2090"}, FERMI[0]),
        ):
            self.assertGPUs(self.boot(self.flavor(gpus="= 1", **words)), [card])
        for words, part in (
            ({"gpu:memory_mib": ">= 40960"}, "gpu:memory_mib >= 40960; there are: 5301, 11441"),
            ({"gpu_arch": "s== hopper"}, "gpu_arch hopper; there are: fermi, kepler"),
            ({"hypervisor": "s== KVM"}, "hypervisor kvm (qemu); there are: lxc"),
        ):
            self.assertIn(part, self.boot_refused(self.flavor(gpus="= 1", **words)))
        both = {
            "resources1:PGPU": "1",
            "trait1:CUSTOM_GPU_ARCH_FERMI": "required",
            "resources2:PGPU": "2",
            "trait2:CUSTOM_GPU_ARCH_KEPLER": "required",
        }
        # A count beside them is that of both.
        server = self.boot(self.flavor(gpus="= 3", **both))
        self.assertEqual(sorted(FERMI[1:2] + KEPLER[1:3]), self.rendered(server))
        self.assertEqual(sorted(FERMI[1:2] + KEPLER[1:3]), self.recorded(server))
        fault = self.boot_refused(self.flavor(**both))
        self.assertIn("2 GPUs (CUSTOM_GPU_ARCH_KEPLER) asked for, at most 1 free", fault)
