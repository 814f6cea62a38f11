# SPDX-License-Identifier: Apache-2.0
"""SR-IOV virtual functions: enabling them, and what prevents their use by guests.

Those of NVIDIA's cards need a vGPU type before a guest can use them, those of AMD's cards and of
Intel's since GVT-g do not. Source: the kernel's Documentation/PCI/pci-iov-howto.rst, and
sriov_drivers_autoprobe in its Documentation/ABI/testing/sysfs-bus-pci; NVIDIA's vGPU user guide on
sriov-manage.
"""

from __future__ import annotations

import pathlib
import re
import time
from collections.abc import Iterable, Mapping

from nova_gpu.core import exception, vendors
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vendors import FunctionMaker, Vendor
from nova_gpu.host import child_process
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.pci import iommu, selection, sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import passthrough
from nova_gpu.host.vgpu import sriov

_OPTION = "virtual_functions"
_FORM = "write the card's PCI address or vendor_id:product_id, =, and a number: 0000:3b:00.0=4"
# The script of NVIDIA's vGPU software. It enables all functions that a card can have, and binds
# them to NVIDIA's driver, without which they are of no use.
SRIOV_MANAGE = pathlib.Path("/usr/lib/nvidia/sriov-manage")

# The script's error while a process has the card open (bigstack-oss/cubecos#1141, and the script
# itself), and how often it is repeated: nova-gpu's own probe of NVML opens all cards for seconds.
_LOCKED = "Cannot obtain unbindLock"
_TRIES, _TRY_AGAIN_S = 15, 1.0
# gim takes the number for each card (amd/MxGPU-Virtualization, gim_shim/gim_config.c).
_GIM = (
    "load it with that number for each card (modprobe gim vf_num={number}) before nova-compute "
    "starts, which offers existing functions"
)

# For a card of which sriov_totalvfs is 0 or missing
_ALLOW = "turn SR-IOV on in the host's firmware{intels}, or take the card out of the option"
_INTELS = (
    ", or load the driver so that it allows them (xe.max_vfs=, or i915.max_vfs= with "
    "i915.enable_guc=3)"
)

_REMEDY = (
    "write 0 to {card}/sriov_drivers_autoprobe before {made}, so that no driver of the host takes "
    "them, not even between two guests"
)


def parse(entries: Iterable[str]) -> Mapping[str, int]:
    """Return the numbers in ``[gpu]virtual_functions``, by a card's address or product."""
    return selection.parse_by_card(_OPTION, entries, _number, _FORM)


def _number(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,4}", text):
        raise ValueError(f"{text!r} is not a number of functions")
    return int(text)


def enable(card: PciAddress, number: int, roots: Roots, timeout_s: float) -> None:
    """Enable *number* virtual functions of *card*, unless it has that many.

    No driver is bound to them, except NVIDIA's to those of NVIDIA's cards. Those of Intel's cards
    get a limit of time where they have none (:func:`unlimited`).

    :raises DeviceUnavailable: if the card cannot have that many now
    """

    def refused(reason: str, remedy: str) -> exception.DeviceUnavailable:
        text = f"[gpu]{_OPTION} wants {number} virtual functions of it: {reason}"
        return exception.DeviceUnavailable(str(card), text, remedy)

    device = sysfs.device(card, roots)
    try:
        vendor = _vendor(device)
        if there := len(sriov.virtual_functions(device)):
            if there != number:
                raise refused(f"it has {there} already", vendor.how_to_remove_functions(card))
            return
        if not (most := sriov.most(device)):
            intels = _INTELS if vendor.id == vendors.INTEL else ""
            raise refused("its driver allows none", _ALLOW.format(intels=intels))
        if number > most:
            raise refused(f"it can have {most}", f"set the option to {most} at most")
        if vendor.function_maker is FunctionMaker.MODULE:
            raise refused("only AMD's module gim creates them", _GIM.format(number=number))
        if vendor.function_maker is FunctionMaker.KERNEL:
            sysfs.write(f"{device}/sriov_drivers_autoprobe", "0", timeout_s)
            sysfs.write(f"{device}/sriov_numvfs", str(number), timeout_s)
        elif not SRIOV_MANAGE.exists():
            raise refused(
                f"there is no {SRIOV_MANAGE}", "install NVIDIA's vGPU software on this host"
            )
        elif number != most:
            reason = f"{SRIOV_MANAGE.name} enables all {most} that it can have"
            raise refused(reason, f"set the option to {most}")
        elif gpu_instances.is_divided(card, roots):
            raise refused(
                f"{SRIOV_MANAGE.name} would remove its GPU instances",
                "remove them (nvidia-smi mig -dci, -dgi), and make them when it has the functions",
            )
        else:
            _run_sriov_manage(card, timeout_s)
        there = len(sriov.virtual_functions(device))
        for index in range(1, there + 1):
            for path, default in sriov.unlimited(device, index):
                sysfs.write(path, str(default), timeout_s)
    except (OSError, child_process.Failed) as error:
        raise refused(str(error), "see the kernel's log about the card") from error
    if there != number:
        raise refused(f"its driver reported success and enabled {there}", "see the kernel's log")


def unlimited(card: PciAddress, number: int, roots: Roots) -> str | None:
    """Return that functions of a card lack a limit of time, and the remedy, else ``None``."""
    device = sysfs.device(card, roots)
    paths = [path for n in range(1, number + 1) for path, _ in sriov.unlimited(device, n)]
    if not paths and _vendor(device).id == vendors.INTEL and not sriov.shows_limits(device):
        return (
            "its driver limits no guest's time, and shows no file to change that: a guest can keep "
            "the card from the guests of its other functions; boot Linux 6.19 or newer"
        )
    if not paths:
        return None
    return (
        f"{paths[0]} is 0: a guest can keep the card from the guests of its other functions; write "
        f"a limit to each ({', '.join(f'{n} {value}' for n, value in sriov.SCHEDULE.items())})"
    )


def _vendor(device: str) -> Vendor:
    return vendors.of(sysfs.attribute(device, "vendor").removeprefix("0x"))


def _run_sriov_manage(card: PciAddress, timeout_s: float) -> None:
    """Run NVIDIA's sriov-manage to enable all virtual functions of *card*.

    While it fails because a process has the card open, as every query of NVML does for a moment,
    run it again.
    """
    ends = time.monotonic() + timeout_s
    for left in range(_TRIES - 1, -1, -1):
        try:
            left_s = round(max(ends - time.monotonic(), 0.1), 1)
            child_process.run([str(SRIOV_MANAGE), "-e", str(card)], left_s)
            return
        except child_process.Failed as error:
            if _LOCKED not in str(error):
                raise
            if not left or time.monotonic() + _TRY_AGAIN_S > ends:
                raise child_process.Failed(
                    f"{error}; end what uses the card (fuser -v /dev/nvidia*), such as DCGM or "
                    "nvidia-persistenced"
                ) from error
        time.sleep(_TRY_AGAIN_S)


def obstacle(function: PciAddress, roots: Roots) -> str | None:
    """Return why no guest can get *function*, a virtual function without a type, and the remedy.

    :raises OSError: if the kernel does not report it, for example because the function is gone
    """
    reason = passthrough.without_iommu([function], roots) or passthrough.reserved([function], roots)
    if reason:
        return reason
    device = sysfs.device(function, roots)
    if strangers := passthrough.strangers([function], roots):
        return (
            f"the IOMMU group of its virtual function {function} has other devices in it: "
            f"{', '.join(strangers)}; put the card into a slot whose ports have ACS"
        )
    driver = iommu.driver(function, roots)
    if iommu.is_with_vfio(function, roots):
        return None
    card = sysfs.device(sysfs.link(device, "physfn") or "", roots)
    remedy = _REMEDY.format(card=card, made=_vendor(device).function_maker.value)
    if driver is not None:
        return (
            f"its virtual function {function} is bound to {driver}, a driver of the host; {remedy}"
        )
    if sysfs.decimal(card, "sriov_drivers_autoprobe") != 0:
        return f"the host's driver would take its virtual function {function}; {remedy}"
    return None


def typed_obstacle(functions: Iterable[PciAddress], roots: Roots) -> str | None:
    """Return why no guest can get one of *functions*, which have NVIDIA vGPU types.

    NVIDIA's driver registers each function with VFIO before it shows its types
    (nv_vfio_pci_core_init in nvidia-vgpu-vfio's vgpu-vfio-pci-core.c), so a function without
    ``vfio-dev`` indicates a kernel before Linux 6.1.

    :raises OSError: if the kernel does not report it, for example because a function is gone
    """
    for function in functions:
        if not iommu.is_with_vfio(function, roots):
            return (
                f"its virtual function {function} has no vfio-dev in sysfs, without which libvirt "
                "starts no guest with it: boot Linux 6.1 or newer"
            )
        if reason := passthrough.reserved([function], roots):
            return reason
    return None
