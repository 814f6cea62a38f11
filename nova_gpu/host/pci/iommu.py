# SPDX-License-Identifier: Apache-2.0
"""The driver and the IOMMU group of a PCI function, on which passthrough depends.

Functions raise OSError if the kernel does not report what they read, unless they say otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from nova_gpu.core import model
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

DRIVER = "vfio-pci"


def driver(address: model.PciAddress, roots: Roots) -> str | None:
    """Return the present driver of the function."""
    return sysfs.link(sysfs.device(address, roots), "driver")


def is_with_vfio(address: model.PciAddress, roots: Roots) -> bool:
    """Return whether the function is bound to vfio-pci or to another driver of VFIO.

    A vendor's VFIO driver may have any name, NVIDIA's is ``nvidia``. Since Linux 6.1 their
    functions have the folder ``vfio-dev`` (drivers/vfio/vfio_main.c), by which libvirt recognises
    them, too (virPCIDeviceGetCurrentDriverNameAndType in its src/util/virpci.c).
    """
    present = driver(address, roots)
    if present is None or present == DRIVER:
        return present is not None
    return os.path.isdir(f"{sysfs.device(address, roots)}/vfio-dev")


def is_prepared(addresses: Iterable[model.PciAddress], roots: Roots) -> bool:
    """Return whether all of these functions are bound to drivers of VFIO now."""
    return all(is_with_vfio(address, roots) for address in addresses)


def direct_regions(address: model.PciAddress, roots: Roots) -> tuple[str, ...]:
    """Return the host memory regions that the firmware reserves for the function's IOMMU group.

    They are as ``0x7c000000-0x7fffffff``. While a group has one, Linux refuses it to guests
    (drivers/iommu/iommu.c ``require_direct``, before 6.6 drivers/iommu/intel/iommu.c "platform RMRR
    requirement"). Regions of the kind ``direct-relaxable``, of displays and USB, prevent nothing
    and are left out (Documentation/ABI/testing/sysfs-kernel-iommu_groups).
    """
    device = sysfs.device(address, roots)
    if sysfs.link(device, "iommu_group") is None:
        return ()
    regions = sysfs.attribute(f"{device}/iommu_group", "reserved_regions").splitlines()
    words = (line.split() for line in regions)
    return tuple(f"{start}-{end}" for start, end, kind in words if kind == "direct")


def group_members(address: model.PciAddress, roots: Roots) -> tuple[str, ...]:
    """Return the sysfs names of the devices in the function's IOMMU group, itself included.

    A PCI function's name is its address. Return ``()`` if the function is in no group.
    """
    try:
        return tuple(sorted(os.listdir(f"{sysfs.device(address, roots)}/iommu_group/devices")))
    except FileNotFoundError:
        return ()
