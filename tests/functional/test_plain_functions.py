# SPDX-License-Identifier: Apache-2.0
"""Virtual functions without types, which guests get as they are: from the provider tree to the
guest and back."""

from __future__ import annotations

from unittest import mock

from tests.fixtures import hosts, pci, sriov_kernel, vgpu
from tests.functional import divided, plain
from tests.functional.divided import FIRST


class EnabledTest(divided.DividedServersTestBase):
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


class RefusalsTest(plain.PlainServersTestBase):
    def test_not_offered(self) -> None:
        self.hosts["host1"].bind(FIRST.replace(".0", ".2"), "i915")
        self.restart_host("host1")
        self.period()
        self.assertEqual((3, 0, 0), self.vgpus())
        self.assertIn(
            f"its virtual function {FIRST.replace('.0', '.2')} is bound to i915", self.log()
        )


class TenantsTest(plain.PlainServersTestBase):
    """Two tenants' functions of four MI300X, which gim makes one of each"""

    MACHINE = "cpu-only"
    PROVIDER = "_gpu_1002_74a1_vgpu_vf"
    CARDS = tuple(f"0000:{bus}3:00.0" for bus in "0123")

    def prepare(self, host: hosts.Host) -> None:
        for card in self.CARDS:
            host.add_gpu(card, "1002", "74a1", class_code=0x120000, driver="gim", totalvfs=1)
            host.add_vf(card, *plain.functions(card, 1))
            host.set_autoprobe(card, enabled=False)

    def set_sharing(self, mode: int) -> None:
        path = self.hosts["host1"].roots.sysfs / "module/gim/parameters/fb_sharing_mode"
        pci.write(path, f"{mode}\n")
        self.restart_host("host1")

    def test_one_tenant_has_the_cards_that_share_memory(self) -> None:
        one = self.flavor(**plain.FLAVOR)
        self.assertEqual((4, 4, 0), self.vgpus(), "whether they share is unknown")
        self.flags(group="gpu", link_groups=[" ".join(self.CARDS[::2]), " ".join(self.CARDS[1::2])])
        self.set_sharing(8)
        self.assertEqual((4, 4, 0), self.vgpus(), "more than the sets")
        self.assertIn("gim may let up to 8 cards share their memory", self.log())
        self.set_sharing(2)
        self.assertEqual((4, 0, 0), self.vgpus())
        pair = self.boot(self.flavor(vgpus="= 2", vgpu_type="s== vf"))
        self.assertEqual(
            plain.slots(self.CARDS[0], 1) + plain.slots(self.CARDS[2], 1), self.recorded(pair)
        )
        with mock.patch.object(self.api, "project_id", "other-tenant"):
            other = self.boot(one)
            self.assertEqual(plain.slots(self.CARDS[1], 1), self.recorded(other))
            self.period()
            self.assertEqual((4, 1, 3), self.vgpus())
        self.assertIn("none free", self.boot_refused(one))
        self._delete_server(other)
        self.set_sharing(1)
        self.assertEqual((4, 0, 2), self.vgpus())


class SizesTest(plain.PlainServersTestBase):
    """MI300X with one function, but on the second host with eight in an unusual partition mode"""

    MACHINE = "cpu-only"
    CARD = "0000:03:00.0"

    def prepare(self, host: hosts.Host) -> None:
        host.add_gpu(self.CARD, "1002", "74a1", class_code=0x120000, driver="gim", totalvfs=8)
        modes = ("CPX", "NPS4") if len(self.hosts) == 2 else ("SPX", "NPS1")
        vgpu.set_partition(host, self.CARD, *modes)
        for number in range(8 if len(self.hosts) == 2 else 1):
            host.add_vf(self.CARD, f"0000:03:02.{number}")
        host.set_autoprobe(self.CARD, enabled=False)

    def test_no_move_changes_the_size(self) -> None:
        any_size = self.flavor(**plain.FLAVOR)
        whole = self.boot(any_size)
        self.start_host("host2")
        self.period("host2")
        self.assertIn(
            "of several sizes; allowed: vf-of-1, vf-of-8-cpx-nps4", self.boot_refused(any_size)
        )
        any_memory = self.flavor(vgpus="= 1", **{"gpu:memory_mib": "1"})
        self.assertIn("memory", self.boot_refused(any_memory), "that of none is known")
        with mock.patch.object(self.api, "project_id", "other-tenant"):
            eighth = self.boot(self.flavor(vgpus="= 1", vgpu_type="s== vf-of-8-cpx-nps4"))
        self.assertEqual("host2", self.host_of(eighth))
        message = " ".join(self.refused({"migrate": None}, whole))
        self.assertIn("No valid host", message)
        self.start_host("host3")
        self.period("host3")
        self._migrate_server(whole)
        self.confirm(whole, "host1")
        self.assertEqual("host3", self.host_of(whole))
