# SPDX-License-Identifier: Apache-2.0
"""Reading sysfs with as few system calls as it takes: a scan meets hundreds of functions.

A device folder is a ``str``: building pathlib objects costs more than the kernel does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from nova_gpu.core import model
from nova_gpu.host.roots import Roots

# Any attribute that is read here is a line; sysfs never gives more than a page.
_PAGE = 4096

# include/linux/ioport.h
_IORESOURCE_IO = 0x100
_IORESOURCE_MEM = 0x200
_IORESOURCE_PREFETCH = 0x2000
_IORESOURCE_MEM_64 = 0x100000
_HIGH = _IORESOURCE_MEM | _IORESOURCE_PREFETCH | _IORESOURCE_MEM_64

# The function's own; the ROM's line and those of its virtual functions follow.
_BARS = 6


def device(address: model.PciAddress | str, roots: Roots) -> str:
    """The folder of a PCI function"""
    return f"{roots.sysfs}/bus/pci/devices/{address}"


def attribute(device: str, name: str) -> str:
    """The attribute's text without its line end.

    :raises OSError: where it is not there (any longer) or the kernel refuses to read it
    """
    path = f"{device}/{name}"
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(fd, _PAGE).decode("ascii", "replace").strip()
    except OSError as error:
        error.filename = path  # read() does not know it
        raise
    finally:
        os.close(fd)


def hexadecimal(device: str, name: str) -> int:
    """An attribute such as ``0x10de``.

    :raises OSError: as :func:`attribute`
    :raises ValueError: where it is something else
    """
    text = attribute(device, name)
    try:
        return int(text, 16)
    except ValueError:
        raise ValueError(f"{device}/{name} has {text!r} for a hexadecimal number") from None


def decimal(device: str, name: str) -> int | None:
    """An attribute such as ``-1``, or ``None`` where it cannot be read or is something else"""
    try:
        return int(attribute(device, name))
    except (OSError, ValueError):
        return None


def link(device: str, name: str) -> str | None:
    """The last part of where a link such as ``driver`` points, or ``None`` without one.

    :raises OSError: where the kernel does not tell
    """
    try:
        return os.readlink(f"{device}/{name}").rpartition("/")[2]
    except FileNotFoundError:
        return None


def high_bars(address: model.PciAddress, roots: Roots) -> tuple[int, ...]:
    """Sizes in bytes of the BARs that a guest's firmware puts above 4 GiB: 64-bit, prefetchable.

    :raises OSError: where it cannot be read
    :raises ValueError: where it is not what the kernel's resource_show() writes
    """
    found = _bars(address, roots)
    return tuple(end - start + 1 for start, end, flags in found if flags & _HIGH == _HIGH)


def has_io_bar(address: model.PciAddress, roots: Roots) -> bool:
    """Whether a guest finds a BAR with I/O ports there: vfio-pci shows none that has no place on
    the host (``vfio_bar_fixup`` in its vfio_pci_config.c).

    :raises OSError, ValueError: as :func:`high_bars`
    """
    return any(start and flags & _IORESOURCE_IO for start, _, flags in _bars(address, roots))


def _bars(address: model.PciAddress, roots: Roots) -> Iterator[tuple[int, int, int]]:
    """The first address, the last one and the flags of each BAR of the function"""
    text = attribute(device(address, roots), "resource")
    for line in text.splitlines()[:_BARS]:
        start, end, flags = (int(word, 16) for word in line.split())
        if end > start:
            yield start, end, flags
