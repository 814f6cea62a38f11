# SPDX-License-Identifier: Apache-2.0
"""The memory that a PCI function maps."""

from __future__ import annotations

from nova_gpu.core import model
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

# include/linux/ioport.h
_IORESOURCE_MEM = 0x200
_IORESOURCE_PREFETCH = 0x2000
_IORESOURCE_MEM_64 = 0x100000
_HIGH = _IORESOURCE_MEM | _IORESOURCE_PREFETCH | _IORESOURCE_MEM_64

# The function's own; the ROM's line and those of its virtual functions follow.
_BARS = 6


def high_bars(address: model.PciAddress, roots: Roots) -> tuple[int, ...]:
    """Sizes in bytes of the BARs that a guest's firmware puts above 4 GiB: 64-bit, prefetchable.

    :raises OSError: where it cannot be read
    :raises ValueError: where it is not what the kernel's resource_show() writes
    """
    text = sysfs.attribute(sysfs.device(address, roots), "resource")
    sizes = []
    for line in text.splitlines()[:_BARS]:
        start, end, flags = (int(word, 16) for word in line.split())
        if flags & _HIGH == _HIGH and end > start:
            sizes.append(end - start + 1)
    return tuple(sizes)
