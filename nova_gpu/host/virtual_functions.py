# SPDX-License-Identifier: Apache-2.0
"""Virtual functions that guests get as they are: AMD's, and Intel's since GVT-g.

Source: the kernel's Documentation/PCI/pci-iov-howto.rst, and sriov_drivers_autoprobe in its
Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

from nova_gpu.core.model import PciAddress
from nova_gpu.host import passthrough, sysfs, vfio
from nova_gpu.host.roots import Roots

_REMEDY = (
    "write 0 to {card}/sriov_drivers_autoprobe before sriov_numvfs has their "
    "number, so that no driver of the host takes them, not even between two guests"
)


def obstacle(function: PciAddress, roots: Roots) -> str | None:
    """Why no guest can have the virtual *function*, and what to do; ``None`` where one can.

    :raises OSError: where the kernel does not tell, as of one that is gone
    """
    if reason := passthrough.without_iommu([function], roots):
        return reason
    device = vfio.device(function, roots)
    if strangers := passthrough.strangers([function], roots):
        return (
            f"the IOMMU group of its virtual function {function} has other devices in it: "
            f"{', '.join(strangers)}; put the card into a slot whose ports have ACS"
        )
    driver = vfio.driver(function, roots)
    if vfio.is_vfio(driver):
        return None
    card = vfio.device(sysfs.link(device, "physfn") or "", roots)
    remedy = _REMEDY.format(card=card)
    if driver is not None:
        return f"its virtual function {function} is with {driver}, a driver of the host; {remedy}"
    if sysfs.decimal(card, "sriov_drivers_autoprobe") != 0:
        return f"the host's driver would take its virtual function {function}; {remedy}"
    return None
