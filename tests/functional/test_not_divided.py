# SPDX-License-Identifier: Apache-2.0
"""Hosts that booted, and on which what divides their cards failed: none of these is whole."""

from __future__ import annotations

import shutil
from typing import Any
from unittest import mock

from nova.conf import devices
from oslo_messaging import exceptions as messaging_exceptions

from nova_gpu.cmd import cards
from nova_gpu.cmd import verify as command
from nova_gpu.conf import CONF
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.verify import gather
from nova_gpu.virt.verify.sources import Kind
from tests.fixtures import sriov_kernel
from tests.functional import alone, divided, mig, profiled, test_plain_functions
from tests.functional.profiled import FIRST, slots

LEAVES = {
    "reserved": "what is not divided any more is not offered",
    "hold": "what was made at it is given back when it can be divided again",
}


class Offering:
    """What Placement is told of whole cards"""

    def assertWhole(self: Any, **expected: int) -> None:
        """So many of each product can be had, before the next period and after it."""
        for _ in range(2):
            found = {}
            for product, uuid in self.groups().items():
                told = self._get_provider_inventory(uuid)["PGPU"]
                if free := told["total"] - told["reserved"]:
                    found[f"of_{product}"] = free
            self.assertEqual(expected, found)
            self.period()

    def assertNothingToVerify(self: Any) -> None:
        """Placement has of whole cards what this host gives."""
        self._point_options_at("host1")
        driver = self.computes["host1"].driver
        with self._state_of("host1"), self.on("host1"):
            looked = Discovery()
            sources = gather.Sources(
                looked, driver._host, driver.virtapi.reportclient, looked.unavailable
            )
            found = command.judge(sources, mend=False, again_after_s=0).differences
        inventories = (Kind.INVENTORY_SHORT, Kind.INVENTORY_EXCEEDS)
        self.assertEqual([], [each for each in found if each.kind in inventories])


class TypedTest(Offering, alone.Alone, profiled.ProfiledServersTestBase):
    """NVIDIA's sriov-manage ended with 1, and left a card as it was found."""

    CARDS = ("0000:3b:00.0", "0000:af:00.0")

    def setUp(self) -> None:
        super().setUp()
        self.leaves = LEAVES
        self.start_host()
        self.server = self.boot(self.of_type(1155))
        self.assertVGPUs(self.server, slots(1155, FIRST[0]))

    def boot_host(self, left: int = 0, driver: str | None = "nvidia") -> None:
        self.kernels["host1"].forget_all()
        for card in self.CARDS:
            self.hosts["host1"].remove_vfs(card, left)
            self.hosts["host1"].bind(card, driver)
        self.restart_host("host1")

    def test_without_functions(self) -> None:
        """Of the other card no instance has any, and no option says that it is divided."""
        self.boot_host()
        self.assertWhole(of_25b6=1, of_26b9=1)
        self.assertNothingToVerify()
        self._point_options_at("host1")
        with self._state_of("host1"):
            listed = {str(card.gpu.address): card.reason for card in cards.read(Discovery())}
        self.assertIn(f"one vGPU is {FIRST[0]}/nvidia-1155/0", str(listed["0000:3b:00.0"]))
        self.assertIsNone(listed["0000:af:00.0"])
        self.assertIn(
            "GPU 0000:3b:00.0 (L40S) is not offered: instances have vGPUs of it", self.log()
        )

    def test_without_a_driver(self) -> None:
        self.boot_host(driver=None)
        self.assertWhole(of_25b6=1, of_26b9=1)

    def test_one_function_left(self) -> None:
        for function in FIRST[1:]:
            shutil.rmtree(self.hosts["host1"].path(function) / "nvidia")
        self.boot_host(left=1)
        self.assertWhole(of_25b6=1)

    def test_state_that_is_lost(self) -> None:
        """Nova's records are enough."""
        shutil.rmtree(self.state())
        self.boot_host()
        self.assertWhole(of_25b6=1, of_26b9=1)

    def test_by_option(self) -> None:
        self.flags(virtual_functions=["10de:26b9=32"], group="gpu")
        self.boot_host()
        self.assertWhole(of_25b6=1)
        self.assertNothingToVerify()
        self.assertIn(
            "GPU 0000:af:00.0 (L40S) is not offered: [gpu]virtual_functions divides it", self.log()
        )

    def test_divided_again(self) -> None:
        """The operator runs the script."""
        self.boot_host()
        host = self.hosts["host1"]
        for card, function in zip(self.CARDS, (FIRST[0], "0000:af:00.4"), strict=True):
            host.add_vf(card, function, "26b9", driver="nvidia")
            (host.path(function) / "nvidia").mkdir()
            for name, text in {"current_vgpu_type": "0", "creatable_vgpu_types": ""}.items():
                (host.path(function) / "nvidia" / name).write_text(text)
            host.register_with_vfio(function)
            self.kernels["host1"]._tell(card)
        self.period()
        self._reboot_server(self.server, hard=True)
        self.assertVGPUs(self.server, slots(1155, FIRST[0]))
        self.assertWhole(of_25b6=1)


class MediatedTest(Offering, alone.Alone, divided.DividedServersTestBase):
    """NVIDIA's vGPU manager has not come up."""

    def setUp(self) -> None:
        super().setUp()
        self.leaves = LEAVES

    def test_without_types(self) -> None:
        self.start_host()
        server = self.boot(self.of_type(65))
        self.assertVGPUs(server, divided.slots(divided.FIRST, 65, 0))
        self.boot_host()
        self.assertWhole(of_25b6=1, of_1bb3=1)

    def test_by_novas_option(self) -> None:
        """Nova itself divides a card."""
        self.flags(enabled_mdev_types=["nvidia-65"], group="devices")
        devices.register_dynamic_opts(CONF)
        self.flags(device_addresses=[divided.FIRST], group="mdev_nvidia-65")
        self.start_host()
        self.boot_host()
        self.assertWhole(of_25b6=1, of_1bb3=1)
        self.assertIn("[mdev_nvidia-65]device_addresses names 0000:3b:00.0", self.log())

    def boot_host(self) -> None:
        self.kernels["host1"].forget_all()
        for card in (divided.FIRST, divided.SECOND):
            shutil.rmtree(self.hosts["host1"].path(card) / "mdev_supported_types")
        self.restart_host("host1")


class PlainTest(Offering, alone.Alone, test_plain_functions.PlainServersTestBase):
    """Nothing has enabled functions."""

    def test_by_option(self) -> None:
        self.leaves = LEAVES
        self.flags(virtual_functions=[f"{divided.FIRST}=3"], group="gpu")
        kernel = self.useFixture(sriov_kernel.SriovKernel(self.hosts["host1"]))
        kernel.refused |= {divided.FIRST}
        for card in (divided.FIRST, divided.SECOND):
            self.hosts["host1"].remove_vfs(card)
        self.restart_host("host1")
        self.assertEqual([f"{divided.FIRST} 3"], kernel.done)
        self.assertWhole(of_25b6=1, of_56c0=1)


class MIGTest(Offering, alone.Alone, mig.MIGServersTestBase):
    """From Hopper on no card remembers its MIG mode."""

    def test_mode_forgotten(self) -> None:
        self.leaves = LEAVES
        self.start_host()
        self.boot(self.of_type(mig.LARGE))
        for card in (mig.FIRST, mig.SECOND):
            self.hosts["host1"].set_mig(card, [])
            self.told[card] = None
        shutil.rmtree(self.state())
        self.restart_host("host1")
        self.assertWhole(of_2335=7)


class UnreadTest(Offering, alone.Alone, profiled.ProfiledServersTestBase):
    """The database does not answer as the service starts."""

    def test_nothing_is_whole_before(self) -> None:
        self.start_host()
        self.assertWhole(of_25b6=1)
        self.leaves = LEAVES
        silent = messaging_exceptions.MessagingTimeout
        with mock.patch("nova_gpu.virt.usage.records.read", side_effect=silent):
            self.restart_host("host1")
            self.assertWhole()
        self.period()
        self.assertWhole(of_25b6=1)
