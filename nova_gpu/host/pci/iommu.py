# SPDX-License-Identifier: Apache-2.0
"""The driver and the IOMMU group of a PCI function, as VFIO checks them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from nova_gpu.core import model
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

DRIVER = "vfio-pci"


def driver(address: model.PciAddress, roots: Roots) -> str | None:
    """Return the present driver of the function, ``None`` if it has none.

    :raises OSError: if the kernel does not report it
    """
    return sysfs.link(sysfs.device(address, roots), "driver")


def is_with_vfio(address: model.PciAddress, roots: Roots) -> bool:
    """Return whether the function is bound to vfio-pci or a vendor's variant of it.

    A variant may have any name, NVIDIA's is ``nvidia``. Since Linux 6.1 all of them have
    ``vfio-dev`` below their functions (drivers/vfio/vfio_main.c), and libvirt recognises them by
    that (virPCIDeviceGetCurrentDriverNameAndType in its src/util/virpci.c).

    :raises OSError: if the kernel does not report it
    """
    present = driver(address, roots)
    if present is None or present == DRIVER:
        return present is not None
    return os.path.isdir(f"{sysfs.device(address, roots)}/vfio-dev")


def is_prepared(addresses: Iterable[model.PciAddress], roots: Roots) -> bool:
    """Return whether all of these functions are bound to VFIO now, so that none needs binding.

    :raises OSError: if the kernel does not report it
    """
    return all(is_with_vfio(address, roots) for address in addresses)


def direct_regions(address: model.PciAddress, roots: Roots) -> tuple[str, ...]:
    """Return the memory regions that the firmware wants mapped one to one for the function's group.

    Linux refuses to attach such a group to a guest's domain (drivers/iommu/iommu.c
    ``require_direct``, before 6.6 drivers/iommu/intel/iommu.c "platform RMRR requirement"). Regions
    that are ``direct-relaxable``, of displays and USB, do not prevent it
    (Documentation/ABI/testing/sysfs-kernel-iommu_groups).

    :raises OSError: if the kernel does not report it
    """
    device = sysfs.device(address, roots)
    if sysfs.link(device, "iommu_group") is None:
        return ()
    regions = sysfs.attribute(f"{device}/iommu_group", "reserved_regions").splitlines()
    words = (line.split() for line in regions)
    return tuple(f"{start}-{end}" for start, end, kind in words if kind == "direct")


def group_members(address: model.PciAddress, roots: Roots) -> tuple[str, ...]:
    """Return the sysfs names of the devices in the function's IOMMU group, itself included.

    The name of a PCI function is its address. Return an empty tuple if it is in no group.
    """
    try:
        return tuple(sorted(os.listdir(f"{sysfs.device(address, roots)}/iommu_group/devices")))
    except FileNotFoundError:
        return ()
