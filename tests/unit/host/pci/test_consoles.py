# SPDX-License-Identifier: Apache-2.0

from nova_gpu.core import model
from nova_gpu.host.pci import consoles as host_consoles
from tests.fixtures import consoles, pci
from tests.fixtures.bases.host import HostTestCase

ONE, TWO = "0000:02:00.0", "0000:81:00.0"


class TestConsole(HostTestCase):
    def console(self, address: str) -> str | None:
        return host_consoles.console([model.PciAddress.parse(address)], self.host.roots)

    def framebuffer(self, address: str, number: int) -> None:
        consoles.add_framebuffer(self.host.path(address), self.host.roots.sysfs, number)

    def test_boot_display(self) -> None:
        self.host.add_gpu(ONE, "10de", "1e04", class_code=pci.VGA, boot_vga=True)
        self.assertIn("booted on", str(self.console(ONE)))
        self.host.bind(ONE, "vfio-pci")
        self.assertIsNone(self.console(ONE))

    def test_text_console(self) -> None:
        self.host.add_gpu(ONE, "1002", "74a1")
        self.host.add_gpu(TWO, "1002", "74a1")
        self.framebuffer(ONE, 1)
        self.framebuffer(TWO, 0)
        consoles.add_terminals(self.host.roots.sysfs, framebuffer=True)
        self.assertIsNone(self.console(ONE))
        self.assertIn("fb0", str(self.console(TWO)))

    def test_framebuffer_that_no_terminal_uses(self) -> None:
        self.host.add_gpu(ONE, "1002", "74a1")
        self.framebuffer(ONE, 0)
        consoles.add_terminals(self.host.roots.sysfs, framebuffer=False)
        self.assertIsNone(self.console(ONE))

    def test_serial_console(self) -> None:
        self.host.add_gpu(ONE, "1002", "74a1")
        self.framebuffer(ONE, 0)
        consoles.add_terminals(self.host.roots.sysfs, framebuffer=True, active="ttyS0")
        self.assertIsNone(self.console(ONE))
        (self.host.roots.sysfs / "class/tty/console/active").write_text("tty0 ttyS0\n")
        self.assertIn("fb0", str(self.console(ONE)))
        (self.host.roots.sysfs / "class/tty/console/active").unlink()
        self.assertIn("fb0", str(self.console(ONE)))


class TestFirmware(HostTestCase):
    def shown(self) -> str | None:
        card = model.PciAddress.parse(ONE)
        return host_consoles.firmware_framebuffer([card], self.host.roots)

    def test_in_a_bar(self) -> None:
        self.host.add_gpu(ONE, "10de", "1e04")
        self.host.add_gpu(TWO, "10de", "1e04")
        self.host.show_firmware(TWO)
        self.assertIsNone(self.shown())
        self.host.show_firmware(ONE, "simpledrm")
        self.assertEqual("simpledrm", self.shown())

    def test_by_its_address(self) -> None:
        self.host.add_gpu(ONE, "10de", "1e04", mapped_mib=0)
        for elsewhere in (0xC0000000, 0xE0000000):
            self.host.show_firmware(ONE, start=elsewhere)
        self.assertIsNone(self.shown())
        self.host.show_firmware(ONE, start=0xD0000000)
        self.assertEqual("BOOTFB", self.shown())

    def test_unknown(self) -> None:
        self.host.add_gpu(ONE, "10de", "1e04")
        (self.host.roots.proc / "iomem").unlink()
        self.assertRaises(OSError, self.shown)
