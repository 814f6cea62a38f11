# SPDX-License-Identifier: Apache-2.0
"""Virtual functions: how many a card is to have, enabling them, and what keeps one from guests that
get it as it is, of AMD's cards, and Intel's since GVT-g.

Source: the kernel's Documentation/PCI/pci-iov-howto.rst, and sriov_drivers_autoprobe in its
Documentation/ABI/testing/sysfs-bus-pci; NVIDIA's vGPU user guide on sriov-manage.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Mapping

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.host import child
from nova_gpu.host.pci import attributes, by_card, products, sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import iommu, passthrough
from nova_gpu.host.vgpu import sriov

_OPTION = "virtual_functions"
_FORM = "write the card's PCI address or vendor_id:product_id, =, and a number: 0000:3b:00.0=4"
# NVIDIA's vGPU software has it there. It enables all functions that a card can have, and gives them
# to NVIDIA's driver, without which they are of no use.
SRIOV_MANAGE = pathlib.Path("/usr/lib/nvidia/sriov-manage")

_REMEDY = (
    "write 0 to {card}/sriov_drivers_autoprobe before sriov_numvfs has their "
    "number, so that no driver of the host takes them, not even between two guests"
)


def parse(entries: Iterable[str]) -> Mapping[str, int]:
    """The numbers of ``[gpu]virtual_functions`` by address or product, as :class:`GPU` has them.

    :raises InvalidOption: where an entry is not of its form
    """
    return by_card.parse(_OPTION, entries, _number, _FORM)


def _number(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,4}", text):
        raise ValueError(f"{text!r} is no number of functions")
    return int(text)


def enable(card: PciAddress, number: int, roots: Roots, timeout_s: float) -> None:
    """*card* has that many when it returns, which no driver of the host takes but NVIDIA's.

    :raises DeviceUnavailable: where it cannot have them now
    """

    def refused(reason: str, remedy: str) -> exception.DeviceUnavailable:
        text = f"[gpu]{_OPTION} wants {number} virtual functions of it: {reason}"
        return exception.DeviceUnavailable(str(card), text, remedy)

    device = iommu.device(card, roots)
    try:
        if there := len(sriov.virtual_functions(device)):
            if there != number:
                raise refused(
                    f"it has {there}", f"write 0 to {device}/sriov_numvfs while no guest has one"
                )
            return
        if number > (most := sriov.most(device)):
            raise refused(f"it can have {most}", "say no more than that")
        if sysfs.attribute(device, "vendor") != f"0x{products.NVIDIA}":
            attributes.write(f"{device}/sriov_drivers_autoprobe", "0", timeout_s)
            attributes.write(f"{device}/sriov_numvfs", str(number), timeout_s)
        elif not SRIOV_MANAGE.exists():
            raise refused(
                f"there is no {SRIOV_MANAGE}", "install NVIDIA's vGPU software on this host"
            )
        elif number != most:
            raise refused(f"{SRIOV_MANAGE.name} enables all {most} that it can have", "say so many")
        else:
            child.run([str(SRIOV_MANAGE), "-e", str(card)], timeout_s)
        there = len(sriov.virtual_functions(device))
    except (OSError, child.Failed) as error:
        raise refused(str(error), "see the kernel's log about the card") from error
    if there != number:
        raise refused(f"its driver said nothing and enabled {there}", "see the kernel's log")


def obstacle(function: PciAddress, roots: Roots) -> str | None:
    """Why no guest can have the virtual *function*, and what to do; ``None`` where one can.

    :raises OSError: where the kernel does not tell, as of one that is gone
    """
    if reason := passthrough.without_iommu([function], roots):
        return reason
    device = iommu.device(function, roots)
    if strangers := passthrough.strangers([function], roots):
        return (
            f"the IOMMU group of its virtual function {function} has other devices in it: "
            f"{', '.join(strangers)}; put the card into a slot whose ports have ACS"
        )
    driver = iommu.driver(function, roots)
    if iommu.is_with_vfio(function, roots):
        return None
    card = iommu.device(sysfs.link(device, "physfn") or "", roots)
    remedy = _REMEDY.format(card=card)
    if driver is not None:
        return (
            f"its virtual function {function} is bound to {driver}, a driver of the host; {remedy}"
        )
    if sysfs.decimal(card, "sriov_drivers_autoprobe") != 0:
        return f"the host's driver would take its virtual function {function}; {remedy}"
    return None


def typed_obstacle(functions: Iterable[PciAddress], roots: Roots) -> str | None:
    """Why no guest can have virtual functions that get a vGPU type, of the first of *functions* for
    which there is a reason; ``None`` where all can be given.

    NVIDIA's driver registers each with VFIO before it shows its types (nv_vfio_pci_core_init in
    nvidia-vgpu-vfio's vgpu-vfio-pci-core.c), so that one without ``vfio-dev`` tells of the kernel.

    :raises OSError: where the kernel does not tell, as of one that is gone
    """
    for function in functions:
        if not iommu.is_with_vfio(function, roots):
            return (
                f"its virtual function {function} has no vfio-dev in sysfs, without which libvirt "
                "starts no guest with it: boot Linux 6.1 or newer"
            )
    return None
