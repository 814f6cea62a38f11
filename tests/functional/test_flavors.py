# SPDX-License-Identifier: Apache-2.0
"""The flavor's words, from the API that takes them to the fault of who cannot be served."""

from __future__ import annotations

from unittest import mock

from nova_gpu.core.flavor import condition
from nova_gpu.core.flavor.parsers import ALLOWED_COUNTS
from tests.functional import alone, base


class WordsAtTheAPITest(base.GPUServersTestBase):
    def test_taken(self) -> None:
        for words in (
            base.BLUEPRINT,
            {"gpus": "2"},
            {"gpus": ">= 2", "gpu_arch": "<or> fermi <or> kepler"},
            {"hypervisor": "KVM", "hypervisor_type": "s== ironic"},
            {"gpu:model": "A100 SXM4 80GB", "gpu:memory_mib": ">= 40960"},
            {"gpu:topology": "nvlink", "gpu:topology_policy": "preferred"},
            {"resources:PGPU": "2", "trait:CUSTOM_GPU_ARCH_FERMI": "required"},
        ):
            with self.subTest(words=words):
                flavor = self.flavor(**words)
                self.assertEqual(words, self.admin_api.get_extra_specs(flavor))

    def test_refused_with_key_value_and_what_is_allowed(self) -> None:
        for key, value, allowed in (
            ("gpus", "rubbish", ALLOWED_COUNTS),
            ("gpus", "<= 2", ALLOWED_COUNTS),
            ("gpus", "0", ALLOWED_COUNTS),
            ("gpu_arch", ">= fermi", condition.ALLOWED_NAMES),
            ("gpu_arch", "<all-in> fermi kepler", condition.ALLOWED_NAMES),
            ("hypervisor", "s<= LXC", condition.ALLOWED_NAMES),
            ("hypervisor_type", "s==", condition.ALLOWED_NAMES),
            ("gpu:model", ">= H200", condition.ALLOWED_NAMES),
            ("gpu:memory_mib", "40 GiB", condition.ALLOWED_NUMBERS),
            ("gpu:topology", "socket", "any or numa or nvlink"),
        ):
            with self.subTest(key=key, value=value):
                text = self.assertAnswer(400, self.flavor, **{key: value})
                for part in (key, repr(value), allowed):
                    self.assertIn(part, text)

    def test_before_the_microversion_the_scheduler_refuses(self) -> None:
        self.start_host()
        with mock.patch.object(self.api_fixture.admin_api, "microversion", "2.85"):
            flavor = self.flavor(gpus="rubbish")
        fault = self.boot_refused(flavor)
        for part in ("gpus='rubbish'", "not a whole number", ALLOWED_COUNTS):
            self.assertIn(part, fault)

    def test_two_words_that_disagree(self) -> None:
        self.start_host()
        for words, part in (
            ({"gpus": "= 2", "resources:PGPU": "3"}, "resources:PGPU says 3"),
            ({"gpu_arch": "s== fermi"}, "the flavor asks for no GPU"),
        ):
            with self.subTest(words=words):
                self.assertIn(part, self.boot_refused(self.flavor(**words)))


class ReasonsTest(alone.Alone, base.GPUServersTestBase):
    def test_what_nobody_has(self) -> None:
        self.start_host(machine="two-architectures")
        for words, part in (
            ({"gpu_arch": "s== hopper"}, "gpu_arch hopper; there are: fermi, kepler"),
            ({"gpu_arch": "<or> ada <or> hopper"}, "there are: fermi, kepler"),
            ({"hypervisor": "s== KVM"}, "hypervisor kvm (qemu); there are: lxc"),
        ):
            with self.subTest(words=words):
                fault = self.boot_refused(self.flavor(gpus="= 1", **words))
                self.assertIn(part, fault)

    def test_no_host_offers_gpus(self) -> None:
        self.assertIn("no host offers GPUs", self.boot_refused(self.gpu_flavor(1)))

    def test_full(self) -> None:
        self.start_host()
        self.boot(self.gpu_flavor(6))
        fault = self.boot_refused(self.flavor(**base.BLUEPRINT | {"gpus": "= 4"}))
        self.assertIn(
            "4 GPUs (architecture fermi, hypervisor lxc) asked for, at most 2 free in one host",
            fault,
        )
        self.boot(self.flavor(**base.BLUEPRINT))
        self.assertIn("1 GPU asked for, none free", self.boot_refused(self.gpu_flavor(1)))
        self.assertInventory(used=8)

    def test_more_than_any_host_has(self) -> None:
        self.start_host()
        fault = self.boot_refused(self.gpu_flavor(9))
        self.assertIn("no host has 9 GPUs: the most in one host is 8", fault)

    def test_the_rest_of_the_flavor(self) -> None:
        self.start_host()
        fault = self.boot_refused(self.flavor(**{"gpus": "= 1", "resources:VCPU": "4000"}))
        self.assertIn("1 fitting GPUs are free, but", fault)
        self.assertIn("4000 VCPU", fault)


class OperatorsTest(base.GPUServersTestBase):
    def test_conditions_choose_the_group(self) -> None:
        self.start_host(machine="two-architectures")
        kepler = base.SECOND_SOCKET
        for words, addresses in (
            ({"gpu_arch": "s!= fermi"}, kepler[:1]),
            ({"gpu_arch": "<in> epl"}, kepler[1:2]),
            ({"gpu_arch": "<or> kepler <or> hopper", "hypervisor": "s!= KVM"}, kepler[2:3]),
            ({"gpu_arch": "FERMI"}, base.FIRST_SOCKET[:1]),
        ):
            with self.subTest(words=words):
                server = self.boot(self.flavor(gpus="= 1", **words))
                self.assertGPUs(server, addresses)

    def test_hypervisor_alone(self) -> None:
        self.start_host()
        self.boot(self.flavor(hypervisor="s== LXC"))
        self.boot_refused(self.flavor(hypervisor="s== KVM"))
