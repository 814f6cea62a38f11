# SPDX-License-Identifier: Apache-2.0
import dataclasses
import shutil

from nova_gpu.core import model
from nova_gpu.core.model import PciAddress
from nova_gpu.host.pci import acs, identity, iommu, sysfs
from nova_gpu.host.pci import consoles as host_consoles
from tests.fixtures import cards, consoles, hosts, nvidia, pci
from tests.fixtures.bases.host import HostTestCase

CARD, AUDIO = "0000:81:00.0", "0000:81:00.1"


class TestVfio(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "1e04", companions=(pci.AUDIO,))
        self.functions = [model.PciAddress.parse(address) for address in (CARD, AUDIO)]

    def test_prepared_is_every_function(self) -> None:
        self.assertFalse(iommu.is_prepared(self.functions, self.host.roots))
        self.host.bind(CARD, "vfio-pci")
        self.assertFalse(iommu.is_prepared(self.functions, self.host.roots))
        self.host.bind(AUDIO, "vfio-pci")
        self.assertTrue(iommu.is_prepared(self.functions, self.host.roots))

    def test_drivers_of_vfio(self) -> None:
        """drivers/vfio/pci of the kernel has vfio-pci, xe-vfio-pci, nvgrace-gpu-vfio-pci ..."""
        for driver, expected in (
            *((driver, True) for driver in ("vfio-pci", "mlx5_vfio_pci", "xe-vfio-pci")),
            *((driver, False) for driver in (None, "nvidia", "pci-stub")),
        ):
            self.host.bind(CARD, driver)
            self.assertEqual(expected, self.is_with_vfio(), driver)
        self.host.register_with_vfio(CARD)  # as NVIDIA's driver does with a virtual function
        self.assertTrue(self.is_with_vfio())
        for driver, expected in (("my-vfio-pci", False), ("vfio-pci", True)):  # before Linux 6.1
            self.host.bind(CARD, driver)
            shutil.rmtree(self.host.path(CARD) / "vfio-dev")
            self.assertEqual(expected, self.is_with_vfio(), "it does not say what it does")

    def is_with_vfio(self) -> bool:
        return iommu.is_with_vfio(self.functions[0], self.host.roots)

    def test_no_group(self) -> None:
        host = hosts.Host(self.root / "plain", iommu=False)
        host.add_gpu(CARD, "10de", "1e04")
        self.assertEqual((), iommu.group_members(self.functions[0], host.roots))


BEHIND = "0000:84:00.0"


class AboveTest(HostTestCase):
    def above(self, *bridges: str) -> tuple[str | None, PciAddress | None]:
        parent = None
        for bridge in bridges:
            parent = self.host.add_bridge(bridge, parent=parent)
        self.host.add_gpu(BEHIND, "10de", "2335", parent=parent)
        return sysfs.above(f"{self.host.devices}/{BEHIND}")

    def test_switches(self) -> None:
        """Of two the nearer one counts."""
        bridges = ("0000:80:01.0", "0000:81:00.0", "0000:82:04.0", "0000:83:00.0", "0000:83:10.0")
        for number, expected in (
            (0, ("pci0000:84", None)),
            (1, ("pci0000:80", None)),
            (3, ("pci0000:80", PciAddress(0, 0x81, 0, 0))),
            (5, ("pci0000:80", PciAddress(0, 0x83, 0, 0))),
        ):
            self.host = hosts.Host(self.root / f"{number}")
            self.assertEqual(expected, self.above(*bridges[:number]))

    def test_what_cannot_be_read_and_the_domain_of_a_vmd(self) -> None:
        self.assertEqual("", sysfs.cpulist(1, self.host.roots))
        self.assertEqual((None, None), sysfs.above(f"{self.host.devices}/0000:01:00.0"))
        for target, root in (
            ("somewhere/else", None),
            ("pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0", "pci10000:00"),
        ):
            link = self.host.root / "link"
            link.symlink_to(target)
            self.assertEqual((root, None), sysfs.above(str(link)))
            link.unlink()

    def write_link(self, address: str, speed: str, width: str) -> None:
        for name, text in (("speed", speed), ("width", width)):
            (self.host.path(address) / f"max_link_{name}").write_text(f"{text}\n")

    def test_a_link_is_as_its_slower_end(self) -> None:
        self.above("0000:80:01.0")
        device = f"{self.host.devices}/{BEHIND}"
        self.assertIsNone(sysfs.pcie_link(device))
        for address, speed, width, expected in (
            (BEHIND, "32.0 GT/s PCIe", "16", "32.0 GT/s PCIe"),
            ("0000:80:01.0", "8.0 GT/s PCIe", "32", "8.0 GT/s PCIe"),
            ("0000:80:01.0", "Unknown", "255", "32.0 GT/s PCIe"),
            (BEHIND, "Unknown", "0", None),
        ):
            self.write_link(address, speed, width)
            link = expected and {"speed": expected, "width": 16}
            self.assertEqual(link, sysfs.pcie_link(device))
        self.assertIsNone(sysfs.pcie_link(f"{self.host.devices}/0000:01:00.0"))


IDENTIFIED = "0000:88:00.0"


class IdentityTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.roots = self.host.roots

    def of(self, driver: str | None = "nvidia") -> identity.Identity:
        return identity.read(cards.card(IDENTIFIED, driver), self.roots)

    def test_of_nvidias_driver(self) -> None:
        self.host.add_gpu(IDENTIFIED, "10de", "2335")
        self.assertEqual({"nvidia": nvidia.gpu_uuid(IDENTIFIED)}, self.of())
        path = self.roots.proc / f"driver/nvidia/gpus/{IDENTIFIED}/information"
        path.write_text("GPU UUID: \t GPU-????????-????-????-????-????????????\n")
        self.assertEqual({}, self.of())
        card = dataclasses.replace(cards.card(IDENTIFIED), uuid="GPU-as-nvml-says")
        self.assertEqual({"nvidia": "GPU-as-nvml-says"}, identity.read(card, self.roots))

    def test_of_amdgpu(self) -> None:
        self.host.add_gpu(IDENTIFIED, "1002", "74a1")
        self.assertEqual({}, self.of("amdgpu"))
        path = self.host.path(IDENTIFIED) / "unique_id"
        for text, expected in (("f1b9a0c3d2e45678\n", True), ("0\n", False), ("none\n", False)):
            path.write_text(text)
            self.assertEqual({"amdgpu": text.strip()} if expected else {}, self.of("amdgpu"))

    def test_serial_number(self) -> None:
        self.host.add_gpu(IDENTIFIED, "10de", "2335", driver="vfio-pci")
        self.assertEqual({}, self.of("vfio-pci"))
        pci.write_serial_number(self.host.path(IDENTIFIED), 0x00044BFFFE123456)
        self.assertEqual({"pcie": "00-04-4b-ff-fe-12-34-56"}, self.of("vfio-pci"))
        config = self.host.path(IDENTIFIED) / "config"
        config.write_bytes(config.read_bytes()[:64])  # as who is not root reads it
        self.assertEqual({}, self.of("vfio-pci"))
        for number in (0, 2**64 - 1):
            pci.write_serial_number(self.host.path(IDENTIFIED), number)
            self.assertEqual({}, self.of("vfio-pci"))

    def test_no_list_of_capabilities(self) -> None:
        self.host.add_gpu(IDENTIFIED, "10de", "2335", driver="vfio-pci")
        config = self.host.path(IDENTIFIED) / "config"
        circle = (0x100 << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
        for content in (b"\xff" * 4096, b"", bytes(256) + circle + bytes(3836), bytes(260)):
            config.write_bytes(content)
            self.assertEqual({}, self.of("vfio-pci"))

    def test_same(self) -> None:
        one = {"nvidia": "GPU-1", "pcie": "1"}
        self.assertTrue(identity.same(one, {"pcie": "1"}))
        self.assertIs(False, identity.same(one, {"pcie": "2", "nvidia": "GPU-1"}))
        for other in ({}, {"amdgpu": "1"}):
            self.assertIsNone(identity.same(one, other))

    def test_addresses(self) -> None:
        for address in (IDENTIFIED, "0000:89:00.0"):
            self.host.add_gpu(address, "10de", "2335", totalvfs=4)
        self.host.add_vf(IDENTIFIED, "0000:88:00.4", "2335")
        self.host.add_gpu("0000:8a:00.0", "10de", "2330")
        (self.host.path("0000:8a:00.0") / "vendor").write_text("no number")
        self.assertEqual({IDENTIFIED, "0000:89:00.0"}, identity.addresses("10de:2335", self.roots))


PORT, OTHER_PORT, ONE, OTHER = "0000:02:00.0", "0000:02:01.0", "0000:04:00.0", "0000:05:00.0"
_OFF = "has ACS off (source validation, request redirect, completion redirect, upstream forwarding)"


class SwitchTest(HostTestCase):
    """Four pairs of cards, each behind a switch"""

    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.build("switched-8", self.root)

    def faults(self) -> dict[str, str | None]:
        return acs.read(self.ports(), self.host.roots)

    def ports(self) -> dict[str, frozenset[object]]:
        return dict(acs.ports([gpu.address for gpu in self.host.gpus()], self.host.roots))

    def test_ports(self) -> None:
        """Root ports have one card's switch each, and upstream ports control nothing."""
        ports = self.ports()
        self.assertEqual(8, len(ports))
        pair = frozenset(cards.addresses(ONE, OTHER))
        self.assertEqual((pair, pair), (ports[PORT], ports[OTHER_PORT]))
        self.assertEqual({None}, set(self.faults().values()))

    def test_control_cleared(self) -> None:
        self.host.set_acs(PORT, 0)
        self.assertEqual({PORT: _OFF}, {k: v for k, v in self.faults().items() if v})
        self.host.set_acs(PORT, pci.SEPARATED & ~0x04)
        self.assertEqual("has ACS off (request redirect)", self.faults()[PORT])
        self.host.set_acs(PORT, None)
        self.assertEqual("has no ACS", self.faults()[PORT])
        path = self.host.path(PORT) / "config"
        path.write_bytes(path.read_bytes()[:256])  # no extended space
        self.assertEqual("has no ACS", self.faults()[PORT])

    def test_unread(self) -> None:
        """It is not known of a port that does not answer, or that is gone."""
        (self.host.path(PORT) / "config").write_bytes(b"\xff" * 4096)
        (self.host.path(OTHER_PORT) / "config").unlink()
        self.assertEqual(self.ports().keys() - {PORT, OTHER_PORT}, self.faults().keys())


class RootPortTest(HostTestCase):
    """Two cards below two root ports of one slot, as a desktop processor has them"""

    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(self.root)
        for port, card in (("0000:00:01.0", ONE), ("0000:00:01.1", OTHER)):
            self.host.add_bridge(port)
            self.host.add_gpu(card, "10de", "1e04", parent=port)

    def fault(self) -> str | None:
        ports = acs.ports([gpu.address for gpu in self.host.gpus()], self.host.roots)
        return acs.read(ports, self.host.roots)["0000:00:01.1"]

    def test_control_cleared(self) -> None:
        self.host.set_acs("0000:00:01.1", 0)
        self.assertEqual(_OFF, self.fault())

    def test_no_capability(self) -> None:
        """The kernel's group counts, unless its command line makes up ACS."""
        self.host.set_acs("0000:00:01.1", None)
        self.assertIsNone(self.fault())
        line = self.host.roots.proc / "cmdline"
        for word in (
            "pcie_acs_override=downstream,multifunction",
            '"pcie-acs-override=multifunction"',
        ):
            line.write_text(f"quiet {word}\n")
            self.assertEqual("has no ACS", self.fault())
        line.write_text("quiet xpcie_acs_override=downstream\n")
        self.assertIsNone(self.fault())

    def test_displaced_register(self) -> None:
        """In Intel's chipsets of 2015 the capability has four bytes, and the control follows."""
        self.host.set_acs("0000:00:01.1", 0)
        path = self.host.path("0000:00:01.1") / "config"
        config = bytearray(path.read_bytes())
        config[2:4] = (0xA115).to_bytes(2, "little")
        config[0x150] = pci.SEPARATED
        path.write_bytes(config)
        self.assertIsNone(self.fault())
        config[0x150] = 0
        path.write_bytes(config)
        self.assertEqual(_OFF, self.fault())

    def test_root_ports_of_other_slots(self) -> None:
        host = hosts.build("fermi-8", self.root / "other")
        self.assertEqual({}, acs.ports([gpu.address for gpu in host.gpus()], host.roots))


SHOWN, OTHER_SHOWN = "0000:02:00.0", "0000:81:00.0"


class TestConsole(HostTestCase):
    def console(self, address: str) -> str | None:
        return host_consoles.console([model.PciAddress.parse(address)], self.host.roots)

    def framebuffer(self, address: str, number: int) -> None:
        consoles.add_framebuffer(self.host.path(address), self.host.roots.sysfs, number)

    def test_boot_display(self) -> None:
        self.host.add_gpu(SHOWN, "10de", "1e04", class_code=pci.VGA, boot_vga=True)
        self.assertIn("booted on", str(self.console(SHOWN)))
        self.host.bind(SHOWN, "vfio-pci")
        self.assertIsNone(self.console(SHOWN))

    def test_text_console(self) -> None:
        for address, number in ((SHOWN, 1), (OTHER_SHOWN, 0)):
            self.host.add_gpu(address, "1002", "74a1")
            self.framebuffer(address, number)
        consoles.add_terminals(self.host.roots.sysfs, framebuffer=True, active="ttyS0")
        active = self.host.roots.sysfs / "class/tty/console/active"
        for text, is_shown in (("ttyS0\n", False), ("tty0 ttyS0\n", True), (None, True)):
            active.unlink() if text is None else active.write_text(text)
            self.assertIsNone(self.console(SHOWN))
            self.assertEqual(is_shown, "fb0" in str(self.console(OTHER_SHOWN)))

    def test_framebuffer_that_no_terminal_uses(self) -> None:
        self.host.add_gpu(SHOWN, "1002", "74a1")
        self.framebuffer(SHOWN, 0)
        consoles.add_terminals(self.host.roots.sysfs, framebuffer=False)
        self.assertIsNone(self.console(SHOWN))


class TestFirmware(HostTestCase):
    def shown(self) -> str | None:
        card = model.PciAddress.parse(SHOWN)
        return host_consoles.firmware_framebuffer([card], self.host.roots)

    def test_in_a_bar(self) -> None:
        self.host.add_gpu(SHOWN, "10de", "1e04")
        self.host.add_gpu(OTHER_SHOWN, "10de", "1e04")
        self.host.show_firmware(OTHER_SHOWN)
        self.assertIsNone(self.shown())
        self.host.show_firmware(SHOWN, "simpledrm")
        self.assertEqual("simpledrm", self.shown())

    def test_by_its_address(self) -> None:
        self.host.add_gpu(SHOWN, "10de", "1e04", mapped_mib=0)
        for elsewhere in (0xC0000000, 0xE0000000):
            self.host.show_firmware(SHOWN, start=elsewhere)
        self.assertIsNone(self.shown())
        self.host.show_firmware(SHOWN, start=0xD0000000)
        self.assertEqual("BOOTFB", self.shown())

    def test_unknown(self) -> None:
        self.host.add_gpu(SHOWN, "10de", "1e04")
        (self.host.roots.proc / "iomem").unlink()
        self.assertRaises(OSError, self.shown)
