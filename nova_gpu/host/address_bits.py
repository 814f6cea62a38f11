# SPDX-License-Identifier: Apache-2.0
"""This host's limits for the address space of guests: address bits, and installed memory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re

from nova_gpu.host import processor
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)
# The capability register of the VT-d specification: the widths of its page tables (SAGAW, a bit
# for each from that of bit 1 on) and the maximum guest address width less one (MGAW).
_SAGAW, _MGAW = 8, 16
_TABLES = {1: 39, 2: 48, 3: 57}


@dataclasses.dataclass(frozen=True, slots=True)
class AddressBits:
    """The widths in bits of the addresses that the host's processor and IOMMUs can use.

    ``processor`` is ``None`` if the kernel does not report it, as on other architectures than x86.
    ``iommu`` is the width of the IOMMU with the fewest bits, ``None`` if no driver reports one.
    AMD's never does; its IOMMUs have 48 bits or more. ``amd``: the processor is AMD's.
    ``gib_pages``: the processor has pages of 1 GiB, or it is unknown whether it has.
    """

    processor: int | None
    iommu: int | None
    amd: bool
    gib_pages: bool = True

    @property
    def usable(self) -> int | None:
        """The width in bits that a guest's addresses can have, ``None`` if it is unknown.

        It is that of the processor or of the IOMMU, whichever is smaller, because VFIO maps the
        guest's memory and BARs in the IOMMU.
        """
        known = [bits for bits in (self.processor, self.iommu) if bits is not None]
        return min(known) if self.processor is not None else None


def of_host(roots: Roots) -> AddressBits:
    """Return the address widths of this host; one that cannot be read is ``None``."""
    bits = processor.of_host(roots)
    iommu = min(_intel_iommus(roots), default=None)
    return AddressBits(bits.address_bits, iommu, bits.is_amd, bits.gib_pages)


def installed_memory(roots: Roots) -> int:
    """Return the host's memory in bytes, 0 if the kernel does not report it."""
    try:
        match = _TOTAL.search((roots.proc / "meminfo").read_text())
    except OSError:
        return 0
    return int(match[1]) << 10 if match else 0


def _intel_iommus(roots: Roots) -> list[int]:
    folder = f"{roots.sysfs}/class/iommu"
    units = []
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError, ValueError):
                units.append(_width(sysfs.hexadecimal(f"{folder}/{name}/intel-iommu", "cap")))
    return units


def _width(capability: int) -> int:
    most = (capability >> _MGAW & 0x3F) + 1
    tables = [bits for bit, bits in _TABLES.items() if capability >> _SAGAW + bit & 1]
    return min(most, max(tables, default=most))
