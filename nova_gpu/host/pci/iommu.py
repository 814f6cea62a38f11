# SPDX-License-Identifier: Apache-2.0
"""Readers of what VFIO checks: the driver of a function, and its IOMMU group."""

from __future__ import annotations

import os
from collections.abc import Iterable

from nova_gpu.core import model
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

DRIVER = "vfio-pci"


def driver(address: model.PciAddress, roots: Roots) -> str | None:
    """Return what drives the function now, ``None`` where nothing does.

    :raises OSError: where the kernel does not tell
    """
    return sysfs.link(sysfs.device(address, roots), "driver")


def is_with_vfio(address: model.PciAddress, roots: Roots) -> bool:
    """Return whether the function is for guests.

    What drives it is vfio-pci, or a vendor's variant of it.

    A variant may be called anything, NVIDIA's is ``nvidia``. Since Linux 6.1 all of them have
    ``vfio-dev`` below their functions (drivers/vfio/vfio_main.c), and libvirt knows them by that
    (virPCIDeviceGetCurrentDriverNameAndType in its src/util/virpci.c).

    :raises OSError: where the kernel does not tell
    """
    present = driver(address, roots)
    if present is None or present == DRIVER:
        return present is not None
    return os.path.isdir(f"{sysfs.device(address, roots)}/vfio-dev")


def is_prepared(addresses: Iterable[model.PciAddress], roots: Roots) -> bool:
    """Return whether all of these functions are with VFIO now, so that nothing needs to be bound.

    :raises OSError: where the kernel does not tell
    """
    return all(is_with_vfio(address, roots) for address in addresses)


def direct_regions(address: model.PciAddress, roots: Roots) -> tuple[str, ...]:
    """Return the regions of memory that the firmware wants the function's group mapped to itself.

    Linux attaches no such group to a guest's domain (drivers/iommu/iommu.c ``require_direct``,
    before 6.6 drivers/iommu/intel/iommu.c "platform RMRR requirement"). Those that are
    ``direct-relaxable``, of displays and USB, are in no guest's way
    (Documentation/ABI/testing/sysfs-kernel-iommu_groups).

    :raises OSError: where the kernel does not tell
    """
    device = sysfs.device(address, roots)
    if sysfs.link(device, "iommu_group") is None:
        return ()
    regions = sysfs.attribute(f"{device}/iommu_group", "reserved_regions").splitlines()
    words = (line.split() for line in regions)
    return tuple(f"{start}-{end}" for start, end, kind in words if kind == "direct")


def group_members(address: model.PciAddress, roots: Roots) -> tuple[str, ...]:
    """Return the devices of the function's IOMMU group, itself included.

    Nothing where it is in none.

    Names as in sysfs: of a PCI function its address.
    """
    try:
        return tuple(sorted(os.listdir(f"{sysfs.device(address, roots)}/iommu_group/devices")))
    except FileNotFoundError:
        return ()
