# SPDX-License-Identifier: Apache-2.0
"""Health of a card as sysfs reports it: functions that do not answer, faults, PCIe errors."""

from __future__ import annotations

import os

from nova_gpu.core import model
from nova_gpu.core.health_verdict import ErrorCounts
from nova_gpu.core.unavailability import Scope, Source, Unavailable
from nova_gpu.host.nvidia import proc
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

# The result of reading a function that does not answer: the root complex returns all ones (PCI
# Express Base Specification, 2.3.2; PCI_POSSIBLE_ERROR in the kernel's pci.h). No vendor has this
# id.
_ALL_ONES = b"\xff\xff"


def silent(gpu: model.GPU, roots: Roots) -> tuple[model.PciAddress, ...]:
    """Return the PCI functions of the card that do not answer.

    Their configuration space cannot be read, or reads as all ones. The file ``config`` is read,
    because it queries the function itself, while ``vendor`` and ``device`` hold what the kernel
    read when it found the function. A function whose ``config`` cannot be opened is not returned:
    if the function is gone, discovery reports it.
    """
    return tuple(function for function in gpu.functions if _is_silent(function, roots))


def _is_silent(address: model.PciAddress, roots: Roots) -> bool:
    try:
        path = f"{sysfs.device(address, roots)}/config"
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(fd, len(_ALL_ONES)) == _ALL_ONES
    except OSError:
        return True  # drivers/pci/access.c: the error of a configuration read
    finally:
        os.close(fd)


def unusable(gpu: model.GPU, roots: Roots) -> Unavailable | None:
    """Return the fault of the card, reported in sysfs or /proc, that makes it useless to guests."""
    try:
        for address in gpu.functions:
            if sysfs.has_unassigned_bar(address, roots):
                return _fault(
                    f"the kernel could not assign a BAR of {address}",
                    "turn on Above 4G Decoding in its firmware, and see the kernel's log about it "
                    "(BAR, failed to assign)",
                )
            # The card needs new firmware: drivers/gpu/drm/xe/xe_survivability_mode.c
            if os.path.exists(f"{sysfs.device(address, roots)}/survivability_mode"):
                return _fault(
                    "Intel's driver has it in survivability mode, in which it does nothing",
                    "see the kernel's log about it, and update its firmware",
                )
    except (OSError, ValueError) as error:
        if not os.path.exists(sysfs.device(address, roots)):
            return None  # gone, which others tell
        return _fault(f"its files in sysfs cannot be read: {error}", "see the kernel's log")
    # kernel-open/nvidia/nv-procfs.c: GPUs in NVreg_ExcludedGpus, and those that the driver excludes
    # by itself
    if gpu.driver == "nvidia" and proc.card(gpu.address, roots).get("GPU Excluded") == "Yes":
        remedy = "remove it from that parameter"
        return _fault("NVIDIA's driver excludes it (NVreg_ExcludedGpus)", remedy)
    return None


def _fault(reason: str, remedy: str) -> Unavailable:
    return Unavailable(reason, remedy, Source.BUS, Scope.ALL)


def bus_errors(gpu: model.GPU, roots: Roots) -> ErrorCounts | None:
    """Return the sums of the PCIe errors that the card and the port above it have counted.

    Either end of the link may count an error. The counters are ``aer_dev_fatal`` and the files next
    to it (Documentation/ABI/testing/sysfs-bus-pci-devices-aer). Return ``None`` if neither end has
    them.
    """
    device = os.path.realpath(sysfs.device(gpu.address, roots))
    counted = [_counts(place) for place in (device, os.path.dirname(device))]
    counts = [count for count in counted if count is not None]
    if not counts:
        return None
    return ErrorCounts(
        fatal=sum(count.fatal for count in counts),
        nonfatal=sum(count.nonfatal for count in counts),
        correctable=sum(count.correctable for count in counts),
    )


def _counts(device: str) -> ErrorCounts | None:
    try:
        return ErrorCounts(
            fatal=_total(device, "aer_dev_fatal"),
            nonfatal=_total(device, "aer_dev_nonfatal"),
            correctable=_total(device, "aer_dev_correctable"),
        )
    except (OSError, ValueError):
        return None


def _total(device: str, name: str) -> int:
    """Return the number in the last line of an AER file, such as ``TOTAL_ERR_FATAL 0``."""
    label, _, number = sysfs.attribute(device, name).rpartition("\n")[2].rpartition(" ")
    if not label.startswith("TOTAL_ERR_"):
        raise ValueError(f"{device}/{name} does not end in a total")
    return int(number)
