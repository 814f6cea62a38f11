# SPDX-License-Identifier: Apache-2.0
"""This host's processor, its limits for the addresses of guests, and its installed memory."""

from __future__ import annotations

import contextlib
import dataclasses
import re

from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

_SIZES = re.compile(rb"^address sizes\s*:\s*(\d+) bits physical", re.MULTILINE)
_VENDOR = re.compile(rb"^vendor_id\s*:\s*(\S+)", re.MULTILINE)
_FAMILY = re.compile(rb"^cpu family\s*:\s*(\d+)$", re.MULTILINE)
_FLAGS = re.compile(rb"^flags\s*:(.*)$", re.MULTILINE)
_TOTAL = re.compile(rb"^MemTotal:\s+(\d+) kB$", re.MULTILINE)
# More than the kernel writes for one processor; all of them can take half a megabyte.
_FIRST = 16384
# The capability register of the VT-d specification: the widths of its page tables (SAGAW, a bit
# for each from that of bit 1 on) and the maximum guest address width less one (MGAW).
_SAGAW, _MGAW = 8, 16
_TABLES = {1: 39, 2: 48, 3: 57}


@dataclasses.dataclass(frozen=True, slots=True)
class Processor:
    """The facts of the first processor; ``None`` for a fact that the kernel does not report.

    On other architectures than x86 the kernel reports none. ``address_bits`` is the width of
    physical addresses, ``vendor`` is as in /proc/cpuinfo (``AuthenticAMD``). ``gib_pages``: the
    processor has pages of 1 GiB, or it is unknown whether it has. ``iommu_bits`` is the address
    width of the IOMMU with the fewest bits. AMD's driver never reports it; AMD's IOMMUs have 48
    bits or more.
    """

    address_bits: int | None = None
    vendor: str | None = None
    family: int | None = None
    gib_pages: bool = True
    iommu_bits: int | None = None

    @property
    def is_amd(self) -> bool:
        return self.vendor == "AuthenticAMD"

    @property
    def usable_bits(self) -> int | None:
        """The width in bits that a guest's addresses can have, ``None`` if it is unknown.

        It is that of the processor or of the IOMMU, whichever is smaller, because VFIO maps the
        guest's memory and BARs in the IOMMU.
        """
        known = [bits for bits in (self.address_bits, self.iommu_bits) if bits is not None]
        return min(known) if self.address_bits is not None else None


def of_host(roots: Roots) -> Processor:
    """Return the facts of this host's first processor; one that cannot be read is ``None``."""
    text = b""
    with contextlib.suppress(OSError), (roots.proc / "cpuinfo").open("rb") as file:
        text = file.read(_FIRST)
    vendor, flags = _VENDOR.search(text), _FLAGS.search(text)
    return Processor(
        _number(_SIZES.search(text)),
        vendor[1].decode(errors="replace") if vendor else None,
        _number(_FAMILY.search(text)),
        flags is None or b"pdpe1gb" in flags[1].split(),
        min(_intel_iommus(roots), default=None),
    )


def _number(match: re.Match[bytes] | None) -> int | None:
    return int(match[1]) if match else None


def _intel_iommus(roots: Roots) -> list[int]:
    folder = f"{roots.sysfs}/class/iommu"
    units = []
    for name in sysfs.names(folder):
        with contextlib.suppress(OSError, ValueError):
            units.append(_width(sysfs.hexadecimal(f"{folder}/{name}/intel-iommu", "cap")))
    return units


def _width(capability: int) -> int:
    most = (capability >> _MGAW & 0x3F) + 1
    tables = [bits for bit, bits in _TABLES.items() if capability >> _SAGAW + bit & 1]
    return min(most, max(tables, default=most))


def installed_memory(roots: Roots) -> int:
    """Return the host's memory in bytes, 0 if the kernel does not report it."""
    try:
        match = _TOTAL.search((roots.proc / "meminfo").read_bytes())
    except OSError:
        return 0
    return int(match[1]) << 10 if match else 0
