# SPDX-License-Identifier: Apache-2.0
"""Reading and writing of attributes of PCI functions in sysfs.

Discovery reads hundreds of functions, so reading takes as few system calls as possible. Writing
happens in a process of its own, with a deadline, because a driver may hang.

The parameter ``device`` is the folder of a function. It is a ``str``, because building pathlib
objects takes longer than reading. Its real path leads through all bridges between the function and
the CPU::

    pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:04.0/0000:84:00.0
    root       root port    a switch: its upstream port and one of those downstream

A reader raises OSError if the attribute is not there (any longer) or the kernel refuses to read it,
and ValueError if its text has another form than the kernel's.

"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator

from nova_gpu.core import exception, model
from nova_gpu.core.guest.devices import PcieLink
from nova_gpu.core.topology.nearness import Neighbour
from nova_gpu.host import child_process
from nova_gpu.host.roots import Roots

# Every attribute read here is one line; sysfs never returns more than a page.
_PAGE = 4096

# include/linux/ioport.h
_IORESOURCE_IO = 0x100
_IORESOURCE_MEM = 0x200
_IORESOURCE_PREFETCH = 0x2000
_IORESOURCE_MEM_64 = 0x100000
_IORESOURCE_UNSET = 0x20000000
_HIGH = _IORESOURCE_MEM | _IORESOURCE_PREFETCH | _IORESOURCE_MEM_64

# The function's own BARs; the lines of the ROM and of its virtual functions follow.
_BARS = 6
_ROOT = re.compile("pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_WRITER = child_process.source(pathlib.Path(__file__).with_name("write_attribute.py"))


def device(address: model.PciAddress | str, roots: Roots) -> str:
    return f"{roots.sysfs}/bus/pci/devices/{address}"


def attribute(device: str, name: str) -> str:
    """Return the text of the attribute *name* of *device*, without white space around it."""
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
    """Return the value of a hexadecimal attribute such as ``0x10de``."""
    text = attribute(device, name)
    try:
        return int(text, 16)
    except ValueError:
        raise ValueError(f"{device}/{name} has {text!r} for a hexadecimal number") from None


def decimal(device: str, name: str) -> int | None:
    """Return the value of a decimal attribute such as ``-1``, ``None`` if it cannot be read."""
    try:
        return int(attribute(device, name))
    except (OSError, ValueError):
        return None


def ids(device: str) -> tuple[str, str]:
    """Return the ids of a PCI function's vendor and of its product: ``10de`` and ``2335``."""
    return _id(device, "vendor"), _id(device, "device")


def subsystem(device: str) -> str | None:
    """Return the ids of a PCI function's board as ``10de:157e``, ``None`` if they are unknown."""
    try:
        return f"{_id(device, 'subsystem_vendor')}:{_id(device, 'subsystem_device')}"
    except (OSError, ValueError):
        return None


def _id(device: str, name: str) -> str:
    number = hexadecimal(device, name)
    if number not in range(1 << 16):
        raise ValueError(f"{device}/{name} has {number:#x}, and an id has four digits")
    return f"{number:04x}"


def link(device: str, name: str) -> str | None:
    """Return the name of what the link *name* leads to, ``None`` if there is no such link."""
    try:
        return os.readlink(f"{device}/{name}").rpartition("/")[2]
    except FileNotFoundError:
        return None


def names(folder: str) -> list[str]:
    """Return the names of the entries of *folder*, empty if it cannot be listed."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def high_bars(address: model.PciAddress, roots: Roots) -> tuple[int, ...]:
    """Return the sizes in bytes of the function's 64-bit prefetchable BARs.

    A guest's firmware puts these above 4 GiB.
    """
    high = bars(address, roots)
    return tuple(end - start + 1 for start, end, flags in high if flags & _HIGH == _HIGH)


def has_io_bar(address: model.PciAddress, roots: Roots) -> bool:
    """Return whether a guest with this function would see a BAR of I/O ports.

    vfio-pci hides a BAR to which the host has not assigned an address (``vfio_bar_fixup`` in its
    vfio_pci_config.c).
    """
    return any(start and flags & _IORESOURCE_IO for start, _, flags in bars(address, roots))


def has_unassigned_bar(address: model.PciAddress, roots: Roots) -> bool:
    """Return whether a memory BAR of the function has no address (drivers/pci/setup-res.c)."""
    return any(
        flags & _IORESOURCE_MEM and (flags & _IORESOURCE_UNSET or not start)
        for start, _, flags in bars(address, roots)
    )


def bars(address: model.PciAddress, roots: Roots) -> Iterator[tuple[int, int, int]]:
    """Yield the first address, the last address and the kernel's flags of each BAR in use."""
    text = attribute(device(address, roots), "resource")
    for line in text.splitlines()[:_BARS]:
        start, end, flags = (int(word, 16) for word in line.split())
        if end > start:
            yield start, end, flags


def neighbour(address: str, roots: Roots) -> Neighbour | None:
    """Return the place of any PCI function, such as a NIC; ``None`` if it cannot be read."""
    folder = device(address, roots)
    try:
        class_code = hexadecimal(folder, "class")
    except (OSError, ValueError):
        return None
    return Neighbour(class_code, numa_node(folder), *above(folder))


def numa_node(device: str) -> int | None:
    """Return the NUMA node of *device*, ``None`` if it is unknown (-1: to the firmware)."""
    node = decimal(device, "numa_node")
    return None if node is None or node < 0 else node


def above(device: str) -> tuple[str | None, model.PciAddress | None]:
    """Return the root bus above *device*, and the upstream port of the switch it is plugged into.

    The root bus is as ``pci0000:80``; behind Intel VMD it is that of the VMD's own domain. A value
    is ``None`` if there is no such bus or switch, or if it cannot be read.

    :param device: a link such as ``bus/pci/devices/0000:84:00.0``
    """
    root, bridges = path(device)
    if len(bridges) < 3:  # a root port alone, or no port: the card has no neighbour behind it
        return root, None
    try:
        return root, model.PciAddress.parse(bridges[-2])
    except exception.InvalidPciAddress:
        return root, None


def path(device: str) -> tuple[str | None, list[str]]:
    """Return the root bus above *device* and the bridges between them, the root port first.

    :param device: as for :func:`above`
    """
    try:
        parts = os.readlink(device).split("/")
    except OSError:
        return None, []
    roots = [index for index, part in enumerate(parts) if _ROOT.fullmatch(part)]
    return (parts[roots[-1]], parts[roots[-1] + 1 : -1]) if roots else (None, [])


def pcie_link(device: str) -> PcieLink | None:
    """Return the highest speed and width of the PCIe link of *device* that both ends support."""
    try:
        # The folder, without checking each component of the path for links
        folder = f"{os.path.dirname(device)}/{os.readlink(device)}"
    except OSError:
        return None
    ends = [_link_end(folder), _link_end(os.path.dirname(folder))]
    if ends[0] is None:
        return None
    known = [end for end in ends if end is not None]
    speed = min((speed["speed"] for speed in known), key=_transfers)
    return {"speed": speed, "width": min(speed["width"] for speed in known)}


def _link_end(device: str) -> PcieLink | None:
    """Return the highest speed and width that a device or port supports; ``None`` if unknown."""
    try:
        speed = attribute(device, "max_link_speed")
        _transfers(speed)
    except (OSError, ValueError):  # "Unknown", of a device that does not answer
        return None
    width = decimal(device, "max_link_width")
    return {"speed": speed, "width": width} if width else None


def _transfers(speed: str) -> float:
    """Return the speed in GT/s in a text such as ``32.0 GT/s PCIe``."""
    return float(speed.partition(" ")[0])


def cpulist(node: int, roots: Roots) -> str:
    """Return the online CPUs of the NUMA node as ``0-7,16-23``, empty without any or if unknown."""
    with contextlib.suppress(OSError):
        return attribute(f"{roots.sysfs}/devices/system/node/node{node}", "cpulist")
    return ""


def write(path: str, text: str, timeout_s: float) -> None:
    """Write *text* to the sysfs attribute at *path*.

    :raises Failed: if the kernel refuses the text, or the write does not return in time
    """
    try:
        child_process.run(child_process.script(_WRITER, path, text), timeout_s)
    except child_process.Failed as error:
        raise child_process.Failed(f"writing {text} to {path} {error}") from error
