# SPDX-License-Identifier: Apache-2.0
"""The host's own console on a card: boot display, text console, firmware framebuffer."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable

from nova_gpu.core import model
from nova_gpu.host.pci import iommu, sysfs
from nova_gpu.host.roots import Roots

_FRAMEBUFFER = re.compile(r"fb(\d+)")
# The name is that in drivers/firmware/sysfb_simplefb.c, or of the driver that has taken over the
# memory: drivers/video/fbdev/{efifb,vesafb,simplefb}.c, and drivers/gpu/drm/sysfb.
_FIRMWARE_FRAMEBUFFERS = frozenset(
    {"BOOTFB", "efifb", "vesafb", "simplefb", "simpledrm", "efidrm", "vesadrm", "ofdrm"}
)
# drivers/tty/vt/vt.c: vtcon/name is "(M) " or "(S) " and the driver's name
_FRAMEBUFFER_CONSOLE = "frame buffer device"


def console(addresses: Iterable[model.PciAddress], roots: Roots) -> str | None:
    """Return why a card with these functions is the host's display, ``None`` if it is not.

    A function that is bound to VFIO displays nothing for the host.
    """
    for address in addresses:
        device = sysfs.device(address, roots)
        if iommu.is_with_vfio(address, roots):
            continue
        if is_boot_display([address], roots):
            return "it is the display the host booted on"
        name = _console_framebuffer(roots)
        if name is not None and name in _names(f"{device}/graphics"):
            return f"the host's text console is on it ({name})"
    return None


def is_boot_display(addresses: Iterable[model.PciAddress], roots: Roots) -> bool:
    """Return whether the firmware used one of these functions as the display of the boot."""
    return any(
        sysfs.decimal(sysfs.device(address, roots), "boot_vga") == 1 for address in addresses
    )


def firmware_framebuffer(addresses: Iterable[model.PciAddress], roots: Roots) -> str | None:
    """Return the name of the firmware's framebuffer if it occupies a BAR of these functions.

    Return ``None`` if it does not. The kernel keeps the framebuffer's memory until a host driver
    binds to the card; vfio-pci frees it for a VGA controller only (``vfio_pci_vga_init``, Linux
    6.0). Users other than root see /proc/iomem without addresses, but still nested
    (kernel/resource.c, ``r_show``).

    :raises OSError, ValueError: if the kernel does not report it
    """
    functions = tuple(addresses)
    names = {str(function) for function in functions}
    above: list[tuple[int, str]] = []
    for line in (roots.proc / "iomem").read_bytes().decode(errors="replace").splitlines():
        where, _, name = line.partition(" : ")
        depth = len(where) - len(where.lstrip())
        above = [parent for parent in above if parent[0] < depth]
        if name in _FIRMWARE_FRAMEBUFFERS:
            start, end = (int(number, 16) for number in where.split("-"))
            if any(parent in names for _, parent in above) or any(
                end and start <= bar[1] and bar[0] <= end
                for function in functions
                for bar in sysfs.bars(function, roots)
            ):
                return name
        above.append((depth, name))
    return None


def _console_framebuffer(roots: Roots) -> str | None:
    """Return the name of the framebuffer that shows the host's text console, such as ``fb0``.

    fbcon maps every virtual terminal to the framebuffer that registered first, which has the lowest
    number. Return ``None`` if no framebuffer shows a terminal, or if the host's console is only a
    serial line: then fbcon uses any framebuffer, even of a card that a guest just had.
    """
    with contextlib.suppress(OSError):
        if "tty0" not in sysfs.attribute(f"{roots.sysfs}/class/tty/console", "active").split():
            return None
    folder = f"{roots.sysfs}/class/vtconsole"
    if not any(_is_framebuffer_console(f"{folder}/{name}") for name in _names(folder)):
        return None
    names = [name for name in _names(f"{roots.sysfs}/class/graphics") if _FRAMEBUFFER.match(name)]
    return min(names, key=lambda name: int(name.removeprefix("fb")), default=None)


def _is_framebuffer_console(vtconsole: str) -> bool:
    """Return whether *vtconsole* is the folder of fbcon, and fbcon is active."""
    try:
        name = sysfs.attribute(vtconsole, "name")
    except OSError:
        return False
    return name.endswith(_FRAMEBUFFER_CONSOLE) and sysfs.decimal(vtconsole, "bind") == 1


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
