# SPDX-License-Identifier: Apache-2.0
"""A card that a driver divides: mediated devices from the flavor to QEMU, and back.

The driver is the kernel's sample (:mod:`lab.vm.modules`), whose types share one card's
memory.
"""

from __future__ import annotations

from typing import Any

from nova.virt.libvirt import utils

from lab.vm import cards
from nova_gpu.core.vgpu import vgpu
from tests.cloud import wire
from tests.vfio import base

# Of a function that no driver has, the kernel puts the bus in front of a type's name.
SMALL, LARGE = "pci-small", "pci-large"
# What the sample shows its guests: QEMU's own display.
SEEN = ("1234:1111", "038000")
STOCK, OURS = "libvirt.LibvirtDriver", "gpu.GPULibvirtDriver"
# The seconds between two reports of nova-compute: adopt waits for two, which must not come.
_REPORT_S, _USUAL_REPORT_S = 2, 10


class VGPUTest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(lambda: self.assertEqual([], self.host.mediated()))
        self.addCleanup(self.cloud._delete_everything)

    def test_two_in_one_guest(self) -> None:
        server = self.cloud.boot(self.cloud.flavor(vgpus="= 2", vgpu_type=SMALL))
        self.assertMade(server, SMALL, 2)
        self.assertEqual(2, list(self.seen_in(server).values()).count(SEEN))

    def test_another_type_and_a_reboot(self) -> None:
        """The types share what the card has: there is no other while it has one."""
        server = self.cloud.boot(self.cloud.flavor(vgpus="= 1", vgpu_type=f"s== {LARGE}"))
        self.assertMade(server, LARGE, 1)
        self.cloud.delete(server)
        self.assertEqual([], self.host.mediated())

        server = self.cloud.boot(self.cloud.flavor(vgpus="= 2", vgpu_type=SMALL))
        self.cloud.reboot(server, "HARD")
        self.assertMade(server, SMALL, 2)

    def assertMade(self, server: dict[str, Any], type_id: str, count: int) -> None:
        """In the first slots of the type, and in the guest's XML"""
        slots = [vgpu.Slot.parse(f"{cards.OTHER}/{type_id}/{each}") for each in range(count)]
        uuids = sorted(vgpu.device_uuid(server["id"], slot) for slot in slots)
        self.assertEqual(uuids, self.host.mediated())
        self.assertEqual(uuids, self.named(server))


class StockTest(base.VFIOTestCase):
    """A guest with a mediated device of stock Nova is taken over as it runs, and given back."""

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.leave_stock)

    def leave_stock(self) -> None:
        self.take(OURS)
        self.cloud.flags(report_interval=_USUAL_REPORT_S)
        self.cloud.restart_compute()
        self.cloud._delete_everything()
        self.assertEqual([], self.host.mediated())

    def take(self, driver: str) -> None:
        """Set the options of nova-compute for stock Nova's driver, or for nova-gpu's."""
        self.cloud.flags(compute_driver=driver, report_interval=_REPORT_S)
        types = [SMALL] if driver == STOCK else []
        self.cloud.flags(enabled_mdev_types=types, group="devices")
        self.cloud.flags(vgpu_types=["*"], group="gpu")

    def test_there_and_back(self) -> None:
        self.cloud.kill_compute()
        self.be_stock_only()
        self.take(STOCK)
        self.cloud.start_compute()
        server = self.cloud.boot(self.cloud.flavor(**{"resources:VGPU": "1"}))
        made = self.host.mediated()
        self.assertEqual((1, made), (len(made), self.named(server)))
        self.assertEqual(1, list(self.seen_in(server).values()).count(SEEN))
        self.assertEqual(made, self.defined())

        self.change(server, "adopt", OURS)
        self.assertEqual([], self.defined())
        self.cloud.reboot(server, "HARD")
        self.assertEqual((made, made), (self.host.mediated(), self.named(server)))
        self.assertEqual(1, list(self.seen_in(server).values()).count(SEEN))

        self.change(server, "leave", STOCK)
        self.assertEqual(made, self.defined())
        self.cloud.reboot(server, "HARD")
        self.assertEqual((made, made), (self.host.mediated(), self.named(server)))
        self.assertEqual(1, list(self.seen_in(server).values()).count(SEEN))

        self.change(server, "adopt", OURS)
        self.cloud.delete(server)
        self.assertEqual(([], []), (self.host.mediated(), self.defined()))

    def change(self, server: dict[str, Any], word: str, driver: str) -> None:
        """Stop nova-compute, run ``nova-gpu`` *word*, and start it with *driver*."""
        kept = self.cloud.kept[wire.HOST]
        before = kept.guests()
        self.assertEqual("running", self.host.virsh("domstate", self.cloud.domain(server)))
        self.cloud.kill_compute()
        self.take(driver)
        more = ["--with-gpufilter"] if word == "adopt" else []
        status, output = self.cloud.command(word, "--apply", *more)
        self.assertEqual(0, status, output)
        self.assertEqual(before, kept.guests())
        self.cloud.start_compute()
        self.assertEqual(before, kept.guests())

    def defined(self) -> list[str]:
        """Return the uuids of the mediated devices that libvirt makes when the host boots."""
        names = self.host.virsh("nodedev-list", "--cap", "mdev", "--all").split()
        lasting = [n for n in names if "Persistent: yes" in self._words("nodedev-info", n)]
        return sorted(utils.mdev_name2uuid(name) for name in lasting)

    def _words(self, *line: str) -> str:
        return " ".join(str(self.host.virsh(*line)).split())
