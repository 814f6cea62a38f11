# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib

import ddt
import fixtures
from oslotest import base

from nova_gpu.host.pci import host_bridges
from tests.fixtures import hosts, pci, processors

ROOT = "pci0000:80"
HOST_BRIDGE = 0x060000
ZEN, BEFORE = 0x17, 0x15


@ddt.ddt
class PassOnTest(base.BaseTestCase):
    def host(self, processor: processors.Processor = processors.SERVER) -> hosts.Host:
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        return hosts.Host(root, processor=processor)

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
        host = self.host()
        first = f"0000:80:{slot}"
        host.add_device(first, vendor_id, product_id, class_code=class_code)
        port = host.add_bridge("0000:80:03.0")
        host.add_gpu("0000:81:00.0", "10de", "2321", parent=port)
        self.assertIs(expected, host_bridges.pass_on(ROOT, host.roots))
        (host.path(first) / "device").unlink()
        self.assertFalse(host_bridges.pass_on(ROOT, host.roots))

    @ddt.data((ZEN, True), (0x1A, True), (BEFORE, False))
    @ddt.unpack
    def test_of_amd(self, family: int, expected: bool) -> None:
        host = self.host(processors.Processor("AuthenticAMD", 48, family=family))
        self.assertIs(expected, host_bridges.pass_on(ROOT, host.roots))

    def test_nothing_to_be_read(self) -> None:
        host = self.host()
        self.assertFalse(host_bridges.pass_on(ROOT, host.roots))
        (host.roots.sysfs / "devices" / ROOT).mkdir(parents=True)
        self.assertFalse(host_bridges.pass_on(ROOT, host.roots))
        (host.roots.proc / "cpuinfo").unlink()
        self.assertFalse(host_bridges.pass_on(ROOT, host.roots))
