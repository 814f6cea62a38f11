# SPDX-License-Identifier: Apache-2.0
"""The files that have a host give its cards to vfio-pci while it boots, as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from nova_gpu.core.model import PciAddress

_HEAD = "# Written by nova-gpu host prepare, taken back by nova-gpu host prepare --undo.\n"

MODPROBE = "/etc/modprobe.d/nova-gpu.conf"
MODULES_LOAD = "/etc/modules-load.d/nova-gpu.conf"
# Before 80-drivers.rules, which loads a module for each device.
UDEV = "/etc/udev/rules.d/05-nova-gpu.rules"
INITRAMFS_TOOLS = "/etc/initramfs-tools/hooks/nova-gpu"
DRACUT = "/etc/dracut.conf.d/nova-gpu.conf"
GRUB = "/etc/default/grub.d/nova-gpu.cfg"

# Who may ask for a function before vfio-pci does, by its vendor (any where None) and by its base
# class and subclass: a host may get such a driver later. A softdep of a module that a host does not
# have means nothing.
_DRIVERS: tuple[tuple[str | None, frozenset[int], tuple[str, ...]], ...] = (
    ("10de", frozenset({0x0300, 0x0302}), ("nouveau", "nova_core", "nvidia", "nvidiafb")),
    ("1002", frozenset({0x0300, 0x0380, 0x1200}), ("amdgpu", "radeon")),
    ("8086", frozenset({0x0300, 0x0380}), ("i915", "xe")),
    (None, frozenset({0x0403}), ("snd_hda_intel",)),
    (None, frozenset({0x0C03}), ("xhci_pci",)),
    ("10de", frozenset({0x0C80}), ("i2c_nvidia_gpu",)),
)


@dataclasses.dataclass(frozen=True, slots=True)
class File:
    path: str
    text: str
    mode: int = 0o644


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """One function of a card for guests. ``modules`` are those of the host's that would take it;
    ``shared``: the names of functions with the same ids that stay with the host."""

    address: PciAddress
    vendor_id: str
    product_id: str
    class_code: int
    modules: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    @property
    def ids(self) -> str:
        return f"{self.vendor_id}:{self.product_id}"


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """What of a host decides which files it takes. ``cpu_vendor`` as in /proc/cpuinfo."""

    cpu_vendor: str | None
    built_in: bool  # vfio-pci is part of the kernel
    initramfs_tools: bool
    dracut: bool
    grub_d: bool


def kernel_arguments(functions: Iterable[Function], host: Host) -> tuple[str, ...]:
    """What the kernel must be booted with. AMD's IOMMU is on unless its firmware has it off."""
    arguments = ["intel_iommu=on"] if host.cpu_vendor == "GenuineIntel" else []
    if host.cpu_vendor in ("GenuineIntel", "AuthenticAMD", "HygonGenuine"):
        # The host's own devices go past the tables: guests' do not.
        arguments.append("iommu=pt")
    ids = _ids(functions)
    if host.built_in and ids:
        # A module's options in modprobe.d are not for what is part of the kernel.
        arguments.append(f"vfio-pci.ids={','.join(ids)}")
    return tuple(arguments)


def files(functions: Iterable[Function], host: Host) -> tuple[File, ...]:
    """Every file this host takes, without any where no card is for guests."""
    functions = tuple(functions)
    if not functions:
        return ()
    overridden = [each for each in functions if each.shared]
    found = [
        File(MODPROBE, _HEAD + _modprobe(functions)),
        File(MODULES_LOAD, f"{_HEAD}vfio-pci\n"),
    ]
    if overridden:
        found.append(File(UDEV, _HEAD + "".join(map(_rule, overridden))))
    if host.initramfs_tools:
        found.append(File(INITRAMFS_TOOLS, _initramfs_tools(), 0o755))
    if host.dracut:
        found.append(File(DRACUT, _HEAD + _dracut(bool(overridden))))
    arguments = kernel_arguments(functions, host)
    if host.grub_d and arguments:
        line = f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {" ".join(arguments)}"\n'
        found.append(File(GRUB, _HEAD + line))
    return tuple(found)


def _ids(functions: Iterable[Function]) -> list[str]:
    return sorted({each.ids for each in functions if not each.shared})


def _modprobe(functions: tuple[Function, ...]) -> str:
    ids = _ids(functions)
    lines = [f"options vfio-pci ids={','.join(ids)}"] if ids else []
    modules = sorted({module for each in functions for module in _modules(each)})
    lines += [f"softdep {module} pre: vfio-pci" for module in modules]
    return "\n".join([*lines, ""])


def _modules(function: Function) -> Iterable[str]:
    yield from function.modules
    for vendor_id, classes, modules in _DRIVERS:
        if vendor_id in (None, function.vendor_id) and function.class_code >> 8 in classes:
            yield from modules


def _rule(function: Function) -> str:
    """The last part is for a vfio-pci that was there before the rule."""
    return (
        f"# Not by its ids {function.ids}, which {', '.join(function.shared)} has too.\n"
        f'ACTION=="add", SUBSYSTEM=="pci", KERNEL=="{function.address}", '
        'ATTR{driver_override}="vfio-pci", '
        "RUN+=\"/bin/sh -c 'modprobe -q vfio-pci; echo %k > /sys/bus/pci/drivers_probe'\"\n"
    )


def _initramfs_tools() -> str:
    """The files for initramfs-tools, which copies /etc/modprobe.d, and udev's hook
    /etc/udev/rules.d.
    """
    return (
        f"#!/bin/sh\n{_HEAD}"
        'case "$1" in prereqs) exit 0 ;; esac\n'
        ". /usr/share/initramfs-tools/hook-functions\n"
        "force_load vfio-pci\n"
    )


def _dracut(overridden: bool) -> str:
    items = f"{MODPROBE} {UDEV}" if overridden else MODPROBE
    return f'force_drivers+=" vfio-pci "\ninstall_items+=" {items} "\n'
