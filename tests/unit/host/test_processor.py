# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil

from nova_gpu.host import processor
from nova_gpu.host.pci import host_bridges
from tests.fixtures import hosts, pci, processors
from tests.fixtures.bases.host import HostTestCase


class OfHostTest(HostTestCase):
    def found(self, kind: processors.Processor) -> processor.Processor:
        processors.write(self.host.roots.proc, kind)
        return processor.of_host(self.host.roots)

    def test_pages_of_a_gib(self) -> None:
        for flags, has in (("fpu pdpe1gb rdtscp", True), ("fpu pdpe1gb_not", False)):
            kind = processors.Processor("GenuineIntel", 46, flags=flags)
            self.assertEqual(has, self.found(kind).gib_pages)

    def test_intel_iommus(self) -> None:
        """Of a Xeon, a Core, and a Xeon whose widest page tables are narrower than its addresses"""
        sysfs = self.host.roots.sysfs
        processors.write_intel_iommu(sysfs, "dmar0", 0x8D2078C10FF0866)
        (sysfs / "class/iommu/ivhd0/amd-iommu").mkdir(parents=True)
        for cap, bits in ((0x8D2078C106F0466, 48), (0x1C0000C40660462, 39), (0x2F0262, 39)):
            shutil.rmtree(sysfs / "class/iommu/dmar1", ignore_errors=True)
            processors.write_intel_iommu(sysfs, "dmar1", cap)
            host_processor = self.found(processors.Processor("GenuineIntel", 52))
            self.assertEqual((bits, bits), (host_processor.iommu_bits, host_processor.usable_bits))

    def test_nothing_to_be_read(self) -> None:
        cpuinfo = self.host.roots.proc / "cpuinfo"
        cpuinfo.write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
        self.assertIsNone(processor.of_host(self.host.roots).usable_bits)
        cpuinfo.unlink()
        self.assertEqual(processor.Processor(), processor.of_host(self.host.roots))

    def test_memory(self) -> None:
        self.assertEqual(0, processor.installed_memory(self.host.roots))
        self.found(processors.Processor("GenuineIntel", 46, memory_gib=512))
        self.assertEqual(512 << 30, processor.installed_memory(self.host.roots))


ROOT = "pci0000:80"
HOST_BRIDGE = 0x060000
ZEN, BEFORE = 0x17, 0x15


class PassOnTest(HostTestCase):
    def passes_on(self) -> bool:
        return host_bridges.pass_on(ROOT, self.host.roots)

    def test_of_intel(self) -> None:
        for number, (vendor_id, product_id, slot, class_code, expected) in enumerate(
            (
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
        ):
            self.host, first = hosts.Host(self.root / f"{number}"), f"0000:80:{slot}"
            self.host.add_device(first, vendor_id, product_id, class_code=class_code)
            port = self.host.add_bridge("0000:80:03.0")
            self.host.add_gpu("0000:81:00.0", "10de", "2321", parent=port)
            self.assertIs(expected, self.passes_on(), product_id)
            (self.host.path(first) / "device").unlink()
            self.assertFalse(self.passes_on())

    def test_of_amd(self) -> None:
        for family, expected in ((ZEN, True), (0x1A, True), (BEFORE, False)):
            amd = processors.Processor("AuthenticAMD", 48, family=family)
            processors.write(self.host.roots.proc, amd)
            self.assertIs(expected, self.passes_on())

    def test_nothing_to_be_read(self) -> None:
        self.assertFalse(self.passes_on())
        (self.host.roots.sysfs / "devices" / ROOT).mkdir(parents=True)
        self.assertFalse(self.passes_on())
        (self.host.roots.proc / "cpuinfo").unlink()
        self.assertFalse(self.passes_on())
