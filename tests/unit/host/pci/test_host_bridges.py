# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ddt

from nova_gpu.host.pci import host_bridges
from tests.fixtures import pci, processors
from tests.fixtures.bases.host import HostTestCase

ROOT = "pci0000:80"
HOST_BRIDGE = 0x060000
ZEN, BEFORE = 0x17, 0x15


@ddt.ddt
class PassOnTest(HostTestCase):
    def passes_on(self) -> bool:
        return host_bridges.pass_on(ROOT, self.host.roots)

    @ddt.data(
        ("8086", "09a2", "00.0", HOST_BRIDGE, True),
        ("8086", "2030", "00.0", pci.BRIDGE, True),
        # Its port A is not there, and the first that is there is a port.
        ("8086", "2032", "02.0", pci.BRIDGE, True),
        ("8086", "09a2", "02.0", HOST_BRIDGE, False),
        # A Xeon E5's, of which the kernel knows it of two ports of one root alone; QEMU's
        ("8086", "2f00", "00.0", HOST_BRIDGE, False),
        ("8086", "29c0", "00.0", HOST_BRIDGE, False),
        ("1d17", "09a2", "00.0", HOST_BRIDGE, False),
    )
    @ddt.unpack
    def test_of_intel(
        self, vendor_id: str, product_id: str, slot: str, class_code: int, expected: bool
    ) -> None:
        first = f"0000:80:{slot}"
        self.host.add_device(first, vendor_id, product_id, class_code=class_code)
        port = self.host.add_bridge("0000:80:03.0")
        self.host.add_gpu("0000:81:00.0", "10de", "2321", parent=port)
        self.assertIs(expected, self.passes_on())
        (self.host.path(first) / "device").unlink()
        self.assertFalse(self.passes_on())

    @ddt.data((ZEN, True), (0x1A, True), (BEFORE, False))
    @ddt.unpack
    def test_of_amd(self, family: int, expected: bool) -> None:
        amd = processors.Processor("AuthenticAMD", 48, family=family)
        processors.write(self.host.roots.proc, amd)
        self.assertIs(expected, self.passes_on())

    def test_nothing_to_be_read(self) -> None:
        self.assertFalse(self.passes_on())
        (self.host.roots.sysfs / "devices" / ROOT).mkdir(parents=True)
        self.assertFalse(self.passes_on())
        (self.host.roots.proc / "cpuinfo").unlink()
        self.assertFalse(self.passes_on())
