# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from nova_gpu.core.model import PciAddress
from nova_gpu.host.pci import sysfs
from tests.fixtures.bases.host import HostTestCase

CARD = "0000:84:00.0"


class TestSysfs(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu("0000:82:00.0", "10de", "1023", numa_node=None)
        self.device = str(self.host.devices / "0000:82:00.0")

    def test_attributes(self) -> None:
        self.assertEqual("0x10de", sysfs.attribute(self.device, "vendor"))
        self.assertEqual(0x1023, sysfs.hexadecimal(self.device, "device"))
        self.assertEqual(-1, sysfs.decimal(self.device, "numa_node"))
        self.assertEqual("nvidia", sysfs.link(self.device, "driver"))

    def test_missing(self) -> None:
        self.assertRaises(FileNotFoundError, sysfs.attribute, self.device, "nothing")
        self.assertRaises(FileNotFoundError, sysfs.hexadecimal, self.device, "nothing")
        self.assertIsNone(sysfs.decimal(self.device, "nothing"))
        self.assertIsNone(sysfs.link(self.device, "nothing"))

    def test_senseless(self) -> None:
        self.assertRaises(ValueError, sysfs.hexadecimal, self.device, "driver_override")
        self.assertIsNone(sysfs.decimal(self.device, "vendor"))


class AboveTest(HostTestCase):
    def above(self, *bridges: str) -> tuple[str | None, PciAddress | None]:
        parent = None
        for bridge in bridges:
            parent = self.host.add_bridge(bridge, parent=parent)
        self.host.add_gpu(CARD, "10de", "2335", parent=parent)
        return sysfs.above(f"{self.host.devices}/{CARD}")

    def test_a_root_port_of_its_own(self) -> None:
        self.assertEqual(("pci0000:80", None), self.above("0000:80:01.0"))

    def test_on_the_root_itself(self) -> None:
        self.assertEqual(("pci0000:84", None), self.above())

    def test_behind_a_switch(self) -> None:
        bridges = ("0000:80:01.0", "0000:81:00.0", "0000:82:04.0")
        self.assertEqual(("pci0000:80", PciAddress(0, 0x81, 0, 0)), self.above(*bridges))

    def test_behind_two_switches_the_nearer_one_counts(self) -> None:
        bridges = ("0000:80:01.0", "0000:81:00.0", "0000:82:04.0", "0000:83:00.0", "0000:83:10.0")
        self.assertEqual(("pci0000:80", PciAddress(0, 0x83, 0, 0)), self.above(*bridges))

    def test_what_cannot_be_read(self) -> None:
        self.assertEqual((None, None), sysfs.above(f"{self.host.devices}/0000:01:00.0"))
        link = self.host.root / "link"
        link.symlink_to("somewhere/else")
        self.assertEqual((None, None), sysfs.above(str(link)))

    def write_link(self, address: str, speed: str, width: str) -> None:
        for name, text in (("speed", speed), ("width", width)):
            (self.host.path(address) / f"max_link_{name}").write_text(f"{text}\n")

    def test_a_link_is_as_its_slower_end(self) -> None:
        self.above("0000:80:01.0")
        device = f"{self.host.devices}/{CARD}"
        self.assertIsNone(sysfs.pcie_link(device))
        self.write_link(CARD, "32.0 GT/s PCIe", "16")
        self.assertEqual({"speed": "32.0 GT/s PCIe", "width": 16}, sysfs.pcie_link(device))
        self.write_link("0000:80:01.0", "8.0 GT/s PCIe", "32")
        self.assertEqual({"speed": "8.0 GT/s PCIe", "width": 16}, sysfs.pcie_link(device))
        self.write_link("0000:80:01.0", "Unknown", "255")
        self.assertEqual({"speed": "32.0 GT/s PCIe", "width": 16}, sysfs.pcie_link(device))
        self.write_link(CARD, "Unknown", "0")
        self.assertIsNone(sysfs.pcie_link(device))
        self.assertIsNone(sysfs.pcie_link(f"{self.host.devices}/0000:01:00.0"))

    def test_the_domain_of_a_vmd(self) -> None:
        link = self.host.root / "link"
        link.symlink_to("pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0")
        self.assertEqual(("pci10000:00", None), sysfs.above(str(link)))


class CpulistTest(HostTestCase):
    def test_what_the_kernel_says(self) -> None:
        roots = self.host.roots
        for node, text in ((0, "0-7,16-23\n"), (1, "\n")):
            folder = roots.sysfs / f"devices/system/node/node{node}"
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(text)
        found = [sysfs.cpulist(node, roots) for node in (0, 1, 2)]
        self.assertEqual(["0-7,16-23", "", ""], found)
