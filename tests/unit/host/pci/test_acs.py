# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from nova_gpu.host.pci import acs
from tests.fixtures import cards, hosts, pci
from tests.fixtures.bases.host import HostTestCase

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

    def test_no_capability(self) -> None:
        self.host.set_acs(PORT, None)
        self.assertEqual("has no ACS", self.faults()[PORT])

    def test_no_extended_space(self) -> None:
        path = self.host.path(PORT) / "config"
        path.write_bytes(path.read_bytes()[:256])
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
        line.write_text("quiet pcie_acs_override=downstream,multifunction\n")
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


class UnsafeInterruptsTest(HostTestCase):
    def test_of_either_module(self) -> None:
        host = hosts.Host(self.root)
        self.assertIsNone(acs.unsafe_interrupts(host.roots))
        path = host.roots.sysfs / "module/iommufd/parameters/allow_unsafe_interrupts"
        pci.write(path, "N\n")
        self.assertIsNone(acs.unsafe_interrupts(host.roots))
        path.write_text("Y\n")
        name = acs.unsafe_interrupts(host.roots)
        self.assertEqual("iommufd.allow_unsafe_interrupts", name)
