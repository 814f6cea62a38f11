# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import io
import os

from nova_gpu.cmd import host_prepare
from nova_gpu.core import exception
from nova_gpu.virt.inventory import discovery
from tests.fixtures import hosts, pci
from tests.fixtures.bases import commands as base

CARD, AUDIO = "0000:81:00.0", "0000:81:00.1"


class HostPrepareTest(base.HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(self.root)
        (self.host.roots.proc / "cpuinfo").write_text("vendor_id : GenuineIntel\n")
        self.target = self.root / "target"
        for folder in ("etc/modprobe.d", "etc/default/grub.d"):
            (self.target / folder).mkdir(parents=True)

    def add_card(self, **attributes: object) -> None:
        self.host.add_gpu(CARD, "10de", "1e04", companions=(pci.AUDIO,), **attributes)

    def prepare(self, status: int = 0, *, apply: bool = False) -> str:
        host_discovery = discovery.Discovery()
        return self.printed(
            status, lambda: host_prepare.main(host_discovery, self.target, apply=apply)
        )

    def undo(self) -> str:
        return self.printed(0, lambda: host_prepare.undo(self.target))

    def files(self) -> set[str]:
        return {str(p.relative_to(self.target)) for p in self.target.rglob("*") if p.is_file()}

    def test_print_apply_and_undo(self) -> None:
        self.add_card(iommu_group=None)
        shown = self.prepare()
        self.assertEqual(set(), self.files())
        self.assertIn("/etc/modprobe.d/nova-gpu.conf (to be written):\n", shown)
        self.assertIn("    options vfio-pci ids=10de:10f0,10de:1e04\n", shown)
        self.assertIn("Kernel arguments: intel_iommu=on iommu=pt\n", shown)
        self.assertIn("Nothing was written; --apply does it.\n", shown)
        self.assertIn("; update-grub; boot the host.", shown)
        shown = self.prepare(apply=True)
        self.assertIn("/etc/modprobe.d/nova-gpu.conf (written):\n", shown)
        self.assertEqual(
            {"etc/modprobe.d/nova-gpu.conf", "etc/default/grub.d/nova-gpu.cfg"}, self.files()
        )
        self.assertNotIn("(written)", self.prepare(apply=True))
        self.assertIn("/etc/modprobe.d/nova-gpu.conf (removed)", self.undo())
        self.assertEqual(set(), self.files())
        self.assertIn("nothing to undo", self.undo())

    def test_ids_that_the_host_has_too(self) -> None:
        self.add_card()
        self.host.add_gpu("0000:82:00.0", "10de", "1b84", companions=(pci.AUDIO,))
        self.option("addresses", [CARD])
        shown = self.prepare()
        self.assertIn(f"{AUDIO} is bound when a guest gets it: 0000:82:00.1, which stays", shown)
        self.assertIn("ids=10de:1e04\n", shown)
        self.host.add_gpu("0000:83:00.0", "10de", "1e04")
        self.assertIn("no card to prepare", self.prepare(1, apply=True))
        self.assertEqual(set(), self.files())

    def modprobe(self, name: str, text: str, folder: str = "etc/modprobe.d") -> None:
        (self.target / folder).mkdir(parents=True, exist_ok=True)
        (self.target / folder / name).write_text(text)

    def test_a_file_before_it_that_gives_a_network_card(self) -> None:
        """The line of nova-gpu replaces that one, and keeps what it has."""
        self.add_card()
        self.modprobe("kvm.conf", "options kvm nested=1\noptions vfio_pci \\\n ids=15B3:101d\n")
        self.assertIn("ids=10de:10f0,10de:1e04,15b3:101d\n", self.prepare(apply=True))
        self.assertIn("(as it should be)", self.prepare())

    def test_a_file_behind_it(self) -> None:
        """That line would replace the one of nova-gpu."""
        self.add_card()
        self.modprobe(
            "vfio.conf", "options vfio-pci ids=15b3:101d disable_vga=1\n", "lib/modprobe.d"
        )
        shown = self.prepare(1, apply=True)
        self.assertIn("/lib/modprobe.d/vfio.conf gives vfio-pci the ids 15b3:101d, and", shown)
        self.assertIn("ids=10de:10f0,10de:1e04,15b3:101d, or", shown)
        self.assertNotIn("etc/modprobe.d/nova-gpu.conf", self.files())
        # What was printed is done.
        self.modprobe("vfio.conf", "options vfio-pci ids=10de:10f0,10de:1e04,15b3:101d\n")
        self.assertIn("ids=10de:10f0,10de:1e04,15b3:101d\n", self.prepare(apply=True))

    def test_the_kernels_command_line(self) -> None:
        self.add_card()
        line = self.host.roots.proc / "cmdline"
        for ids in (
            "vfio-pci.ids=15b3:101d",
            'vfio-pci.ids="15b3:101d"',
            '"vfio_pci.ids=15b3:101d"',
        ):
            line.write_text(f"root=/dev/vda1 {ids} quiet\n")
            self.assertIn("the kernel's command line gives vfio-pci", self.prepare(1, apply=True))
        line.write_text("vfio_pci.ids=15b3:101d,10de:10f0,10de:1e04\n")
        self.assertIn("ids=10de:10f0,10de:1e04,15b3:101d\n", self.prepare(apply=True))

    def test_the_command_line_of_a_kernel_with_vfio_pci(self) -> None:
        """It has no modprobe file, and what others gave it is kept beside its own of before."""
        self.add_card()
        modules = self.target / "lib/modules" / os.uname().release
        modules.mkdir(parents=True)
        (modules / "modules.builtin").write_text("kernel/drivers/vfio/pci/vfio-pci.ko\n")
        line = self.host.roots.proc / "cmdline"
        line.write_text("ro vfio-pci.ids=15b3:101d\n")
        self.assertIn("ids=10de:10f0,10de:1e04,15b3:101d, or remove them", self.prepare(1))
        line.write_text("ro vfio-pci.ids=10de:10f0,10de:1e04,15b3:101d\n")
        argument = "vfio-pci.ids=10de:10f0,10de:1e04,15b3:101d"
        self.assertIn(f"Kernel arguments: intel_iommu=on iommu=pt {argument}", self.prepare())
        line.write_text("ro\n")
        self.prepare(apply=True)
        line.write_text("ro intel_iommu=on iommu=pt vfio-pci.ids=10de:10f0,10de:1e04\n")
        self.host.add_gpu("0000:82:00.0", "10de", "1b84")
        for _ in range(2):
            self.assertIn("vfio-pci.ids=10de:10f0,10de:1b84,10de:1e04\n", self.prepare(apply=True))

    def test_twice_beside_the_command_lines_ids(self) -> None:
        """What is kept of other devices stays, before the host has booted with it and after."""
        self.add_card()
        modules = self.target / "lib/modules" / os.uname().release
        modules.mkdir(parents=True)
        (modules / "modules.builtin").write_text("kernel/drivers/vfio/pci/vfio-pci.ko\n")
        line = self.host.roots.proc / "cmdline"
        argument = "vfio-pci.ids=10de:10f0,10de:1e04,15b3:101d"
        for arguments in (argument, argument, f"{argument} iommu=pt {argument}"):
            line.write_text(f"ro {arguments}\n")
            self.assertIn(f" {argument}\n", self.prepare(apply=True))
        self.undo()
        line.write_text("ro\n")
        self.assertIn("vfio-pci.ids=10de:10f0,10de:1e04\n", self.prepare(apply=True))

    def test_a_card_that_no_guest_can_have(self) -> None:
        self.add_card(mapped_mib=64 << 20)
        self.host.add_gpu("0000:82:00.0", "10de", "1b84", boot_vga=True, class_code=pci.VGA)
        # A processor's graphics with its security processor
        self.host.add_gpu("0000:83:00.0", "1002", "1638")
        self.host.add_device("0000:83:00.2", "1022", "15df", class_code=0x108000)
        shown = self.prepare(1)
        self.assertIn("0000:82:00.0 is left out: it is the display the host booted on", shown)
        self.assertIn("0000:83:00.0 is left out: its slot has devices of the host", shown)
        self.option("addresses", [CARD, "0000:82:00.0"])
        shown = self.prepare()
        self.assertIn(f"{CARD} is left out: ", shown)
        self.assertIn("ids=10de:1b84\n", shown)

    def test_a_file_that_is_not_ours(self) -> None:
        self.add_card()
        file = self.target / "etc/modprobe.d/nova-gpu.conf"
        file.write_text("mine\n")
        error = self.assertRaises(exception.FileNotOurs, host_prepare.undo, self.target)
        self.assertEqual(str(file), error.path)
        host_discovery = discovery.Discovery()
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertRaises(
                exception.FileNotOurs,
                lambda: host_prepare.main(host_discovery, self.target, apply=True),
            )
        self.assertEqual({"etc/modprobe.d/nova-gpu.conf"}, self.files())
        self.assertEqual("mine\n", file.read_text())
