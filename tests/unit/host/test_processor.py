# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ddt

from nova_gpu.host import processor
from tests.fixtures import processors
from tests.fixtures.bases.host import HostTestCase


@ddt.ddt
class OfHostTest(HostTestCase):
    def found(self, kind: processors.Processor) -> processor.Processor:
        processors.write(self.host.roots.proc, kind)
        return processor.of_host(self.host.roots)

    def test_processors(self) -> None:
        for kind, expected in (
            (processors.SERVER, (46, "GenuineIntel", 6)),
            (processors.EPYC, (48, "AuthenticAMD", 0x19)),
        ):
            found = self.found(kind)
            self.assertEqual(expected, (found.address_bits, found.vendor, found.family))
            self.assertEqual((None, expected[0]), (found.iommu_bits, found.usable_bits))

    def test_pages_of_a_gib(self) -> None:
        for flags, has in (("fpu pdpe1gb rdtscp", True), ("fpu pdpe1gb_not", False)):
            kind = processors.Processor("GenuineIntel", 46, flags=flags)
            self.assertEqual(has, self.found(kind).gib_pages)

    # A Xeon's, a Core's, and a Xeon's whose widest page tables are narrower than its addresses.
    @ddt.data((0x8D2078C106F0466, 48), (0x1C0000C40660462, 39), (0x2F0262, 39))
    @ddt.unpack
    def test_intel_iommus(self, cap: int, bits: int) -> None:
        sysfs = self.host.roots.sysfs
        processors.write_intel_iommu(sysfs, "dmar0", 0x8D2078C10FF0866)
        processors.write_intel_iommu(sysfs, "dmar1", cap)
        (sysfs / "class/iommu/ivhd0/amd-iommu").mkdir(parents=True)
        found = self.found(processors.Processor("GenuineIntel", 52))
        self.assertEqual((bits, bits), (found.iommu_bits, found.usable_bits))

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
