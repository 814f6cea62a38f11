# SPDX-License-Identifier: Apache-2.0
"""What libvirt and QEMU say when a card cannot be given, as our own errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

import libvirt

from nova_gpu.core import exception, model
from nova_gpu.core.vgpu.vgpu import Slot

_CHECK = "nova-gpu host check, on that host, says more"
_GONE = "mend or replace the card, or boot the host again"
_IOMMU = f"turn on VT-d or AMD-Vi in the host's firmware and kernel; {_CHECK}"
_BUSY = "end what uses it on the host, or remove the domain with virsh if nobody needs it"

# (what is said, the reason, the remedy): the first that is found in the message counts; its group
# others is whom the user of the instance is not told. Of libvirt (src/hypervisor/virhostdev.c,
# src/util/virpci.c, src/util/virprocess.c, src/qemu/qemu_hostdev.c) and QEMU (hw/vfio).
_TABLE: Sequence[tuple[str, str, str]] = (
    (r"is in use by driver \S+, domain (?P<others>\S+)", "another domain has it", _BUSY),
    (r"PCI device \S+ is in use", "another domain has it", _BUSY),
    (
        r"must be manually detached from the host",
        "a driver of the host has it",
        f"bind all functions of the card to vfio-pci; {_CHECK}",
    ),
    (
        r"host doesn't support (passthrough of host PCI devices|VFIO PCI)",
        "the host's IOMMU is off or its kernel has no vfio",
        _IOMMU,
    ),
    (r"no iommu_group found", "the host's IOMMU is off or does not cover it", _IOMMU),
    (
        r"group (?P<who>\d+) is not viable",
        "drivers of the host have other devices of its IOMMU group {who}",
        f"bind all functions of the card to vfio-pci, or put it into a slot whose ports have ACS; "
        f"{_CHECK}",
    ),
    (
        r"is not assignable",
        "libvirt finds it not isolated from other devices",
        f"put it into a slot whose ports have ACS; {_CHECK}",
    ),
    (
        r"(failed to open /dev/vfio/\d+|error getting device from group \d+)[^\n]*busy",
        "another process of the host has it open",
        _BUSY,
    ),
    (
        r"(VFIO_MAP_DMA failed|vfio_(container_)?dma_map\()[^\n]*Cannot allocate memory|"
        r"cannot limit locked memory",
        "the guest's memory cannot be locked for it",
        "give libvirt's guests a larger limit of locked memory, or the host more free memory",
    ),
    (r"Device \S+ not found: could not access", "it is no longer on the PCI bus", _GONE),
    (r"Unknown PCI header type", "it no longer answers on the PCI bus", _GONE),
    (
        r"Unable to reset PCI device",
        "it could not be reset",
        f"boot the host again; if it comes back, the card cannot be given to guests one after "
        f"another there; {_CHECK}",
    ),
    (
        r"Failed to (bind|detach|unbind) PCI device|Failed to load PCI driver module",
        "libvirt could not take it from the host's driver",
        f"see the kernel's log; {_CHECK}",
    ),
    # What QEMU says of a device of ours and is not above: of containers, groups, iommufd.
    (
        r"failed to open /dev/vfio/|error getting device from group|Failed to set iommu|"
        r"no available container|iommufd|failed to add group \d+ to KVM|"
        r"vfio [0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]:",
        "vfio does not give it",
        f"see the kernel's log; {_CHECK}",
    ),
)
# (what is said, the reason), of the state of a vGPU that is to be moved with its guest. Of libvirt
# (src/qemu/qemu_migration.c) and QEMU (hw/vfio/migration.c, hw/vfio/common.c).
_IMMOVABLE: Sequence[tuple[str, str]] = (
    (r"cannot migrate a domain with <hostdev", "the host's libvirt moves no such device"),
    (
        r"VFIO migration is not supported in kernel|VFIO device doesn't support migration",
        "its driver on the host cannot save its state",
    ),
    (r"Migration is disabled for VFIO device", "QEMU was told not to move it"),
    (
        r"Multiple VFIO devices migration|P2P migration",
        "its driver on the host can save the state of one of a guest's vGPUs, not of several",
    ),
    (r"dirty (page )?tracking", "its driver cannot say what it writes in the guest's memory"),
    (r"vIOMMU", "the guest has an IOMMU of its own"),
    (r"\bvfio\b", "vfio does not move it"),
)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@contextlib.contextmanager
def translated(cards: Sequence[model.GPU]) -> Iterator[None]:
    """Translate libvirt's errors in the start of a guest with *cards*.

    :raises DeviceUnavailable: in place of what libvirt says of one of them
    """
    try:
        yield
    except libvirt.libvirtError as error:
        said = str(error)
        found = translate(said, cards)
        if found is None:
            raise
        raise found from error


def translate(message: str, cards: Sequence[model.GPU]) -> exception.DeviceUnavailable | None:
    """What *message* says of one of *cards*; ``None`` where it is about anything else.

    A message that names no device is about the first card, one that names only others about none:
    the guest may have more devices of the host than its GPUs.
    """
    card_by_function: Mapping[str, model.GPU] = {
        str(function): card for card in cards for function in card.functions
    }
    named = _ADDRESS.findall(message)
    about = [card_by_function[address] for address in named if address in card_by_function]
    if not cards or (named and not about):
        return None
    card = about[0] if about else cards[0]
    for pattern, reason, remedy in _TABLE:
        if match := re.search(pattern, message, re.IGNORECASE):
            words = match.groupdict()
            said = reason.format(**words)
            return exception.DeviceUnavailable(str(card.address), said, remedy, words.get("others"))
    return None


def of_move(error: Exception, slot_by_name: Mapping[str, Slot]) -> str | None:
    """What *error* of a live migration says of one of these vGPUs; ``None`` where it is about
    anything else. A message that names none of them is about the first.

    :param slot_by_name: what QEMU calls each, the address of a function or the uuid of a mediated
        device
    """
    if not isinstance(error, libvirt.libvirtError) or not slot_by_name:
        return None
    message = str(error)
    named = (slot for name, slot in slot_by_name.items() if name in message)
    about = next(named, next(iter(slot_by_name.values())))
    for pattern, reason in _IMMOVABLE:
        if re.search(pattern, message, re.IGNORECASE):
            return f"vGPU {about} cannot be moved: {reason}"
    return None
