# SPDX-License-Identifier: Apache-2.0
"""Virtual functions without types, which guests get as they are: from the provider tree to the
guest and back."""

from __future__ import annotations

from tests.fixtures import hosts, sriov_kernel
from tests.functional import alone, divided, plain
from tests.functional.divided import FIRST


class EnabledTest(alone.Alone, divided.DividedServersTestBase):
    """By [gpu]virtual_functions, at start"""

    MACHINE = "amd-intel"
    CARDS = ("0000:43:00.0", "0000:c3:00.0")

    def prepare(self, host: hosts.Host) -> None:
        for card in self.CARDS:
            for name, text in {"totalvfs": 7, "numvfs": 0, "drivers_autoprobe": 1}.items():
                (host.path(card) / f"sriov_{name}").write_text(f"{text}\n")
            host.bind(card, "i915")
        self.kernel_of_functions = self.useFixture(sriov_kernel.SriovKernel(host))

    def test_once_and_never_of_a_card_that_an_instance_has(self) -> None:
        first, second = self.CARDS
        self.flags(virtual_functions=[f"{second}=2"], group="gpu")
        self.start_host()
        self.assertEqual([f"{second} 2"], self.kernel_of_functions.done)
        part = self.boot(self.flavor(**plain.FLAVOR))
        self.assertEqual(plain.slots(second, 1), self.recorded(part))
        self.hosts["host1"].bind(first, "vfio-pci")
        self.period()
        whole = self.boot(self.flavor(gpus="= 1", gpu_arch="xe-hpg"))
        self.assertEqual([first], self.recorded(whole))
        self.flags(virtual_functions=["8086:56c0=2"], group="gpu")
        self.restart_host("host1")
        self.assertEqual([f"{second} 2"], self.kernel_of_functions.done)
        self._delete_server(whole)
        self.restart_host("host1")
        self.assertEqual([f"{second} 2", f"{first} 2"], self.kernel_of_functions.done)
        why = "the group of whole cards has none any more: what Placement has of it stays, reserved"
        self.leaves = dict.fromkeys(("reserved", "inventory"), why)


class RefusalsTest(alone.Alone, plain.PlainServersTestBase):
    def test_not_offered(self) -> None:
        self.hosts["host1"].bind(FIRST.replace(".0", ".2"), "i915")
        self.restart_host("host1")
        self.period()
        self.assertEqual((3, 0, 0), self.vgpus())
        self.assertIn(
            f"its virtual function {FIRST.replace('.0', '.2')} is bound to i915", self.log()
        )
