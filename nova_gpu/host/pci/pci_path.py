# SPDX-License-Identifier: Apache-2.0
"""What is between a PCI function and the CPU: sysfs has a device below all bridges above it.

::

    pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:04.0/0000:84:00.0
    root       root port    a switch: its upstream port and one of those downstream
"""

from __future__ import annotations

import os
import re

from nova_gpu.core import exception, model
from nova_gpu.core.guest.devices import PcieLink
from nova_gpu.core.topology.nearness import Neighbour
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

_ROOT = re.compile("pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def neighbour(address: str, roots: Roots) -> Neighbour | None:
    """What the function at *address* is and where it is, ``None`` where it cannot be read"""
    device = sysfs.device(address, roots)
    try:
        class_code = sysfs.hexadecimal(device, "class")
    except (OSError, ValueError):
        return None
    return Neighbour(class_code, numa_node(device), *above(device))


def numa_node(device: str) -> int | None:
    """The NUMA node of *device*, ``None`` where it is not known: the kernel says -1 where firmware
    did not say."""
    found = sysfs.decimal(device, "numa_node")
    return None if found is None or found < 0 else found


def above(device: str) -> tuple[str | None, model.PciAddress | None]:
    """The root bus of *device*, a link such as ``bus/pci/devices/0000:84:00.0``, and the upstream
    port of the switch right above it; ``None`` for what there is not or cannot be read.

    Behind Intel VMD the root is that of the VMD's own domain.
    """
    try:
        parts = os.readlink(device).split("/")
    except OSError:
        return None, None
    roots = [index for index, part in enumerate(parts) if _ROOT.fullmatch(part)]
    if not roots:
        return None, None
    bridges = parts[roots[-1] + 1 : -1]
    if len(bridges) < 3:  # a root port alone, or no port: the card has no neighbour behind it
        return parts[roots[-1]], None
    try:
        return parts[roots[-1]], model.PciAddress.parse(bridges[-2])
    except exception.InvalidPciAddress:
        return parts[roots[-1]], None


def link(device: str) -> PcieLink | None:
    """What the link right above *device* can do, which is what the slower of its ends can;
    ``None`` where the kernel does not tell."""
    try:
        # Its folder, without asking at each step of the way whether that is a link as well
        folder = f"{os.path.dirname(device)}/{os.readlink(device)}"
    except OSError:
        return None
    ends = [_end(folder), _end(os.path.dirname(folder))]
    if ends[0] is None:
        return None
    known = [each for each in ends if each is not None]
    speed = min((each["speed"] for each in known), key=_transfers)
    return {"speed": speed, "width": min(each["width"] for each in known)}


def _end(device: str) -> PcieLink | None:
    """What a device or a port can do itself: a root bus has no such attributes."""
    try:
        speed = sysfs.attribute(device, "max_link_speed")
        _transfers(speed)
    except (OSError, ValueError):  # "Unknown", of a device that does not answer
        return None
    width = sysfs.decimal(device, "max_link_width")
    return {"speed": speed, "width": width} if width else None


def _transfers(speed: str) -> float:
    """Of a text such as ``32.0 GT/s PCIe``

    :raises ValueError: where it is none
    """
    return float(speed.partition(" ")[0])
