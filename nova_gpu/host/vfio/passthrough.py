# SPDX-License-Identifier: Apache-2.0
"""The reasons why a host cannot pass a whole card through to a KVM guest.

What the kernel does not report, for example because a function is gone, raises OSError, and
ValueError if it has another form; :func:`obstacles` makes a reason of both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from nova_gpu.core import exception, model, vendors
from nova_gpu.core.guest import address_space
from nova_gpu.host.pci import consoles, iommu, nvswitch, sysfs
from nova_gpu.host.roots import Roots

# include/linux/pci_ids.h: host, PCI and semi-transparent bridges. vfio lets these stay in a group
# whatever drives them (driver_managed_dma in the kernel's pcieport and shpchp).
_BRIDGES = frozenset({0x0600, 0x0604, 0x0609})

# include/linux/pci_ids.h: PCI_BASE_CLASS_MULTIMEDIA and PCI_BASE_CLASS_CRYPT
_MULTIMEDIA, _ENCRYPTION = 0x04, 0x10

# drivers/vfio/group.c: the group that enable_unsafe_noiommu_mode puts a device into gives no
# protection.
_NO_IOMMU_GROUP = "vfio-noiommu"

# GH200 and GB200, whose memory plain vfio-pci does not show (drivers/vfio/pci/nvgrace-gpu, its
# table of ids)
_COHERENT = frozenset({"10de:2342", "10de:2345", "10de:2348", "10de:2941"})

# Guests by which a card is judged: a card that one of them can have is offered.
SMALL_GUESTS = tuple(address_space.Guest(memory=1 << 30, uefi=uefi) for uefi in (False, True))


def is_with_vfio(gpu: model.GPU, roots: Roots) -> bool:
    """Return whether all functions of the card are bound to VFIO now, false if it is unknown."""
    try:
        return iommu.is_prepared(gpu.functions, roots)
    except OSError:
        return False


def card_bars(gpu: model.GPU, roots: Roots) -> address_space.Bars:
    """Return the sizes in bytes of the card's BARs that a guest maps above 4 GiB."""
    return tuple(size for address in gpu.functions for size in sysfs.high_bars(address, roots))


def has_io_bar(gpu: model.GPU, roots: Roots) -> bool:
    """Return whether the card has a BAR to which a guest's firmware must assign I/O ports."""
    return any(sysfs.has_io_bar(address, roots) for address in gpu.functions)


def obstacle(
    gpu: model.GPU, roots: Roots, room: address_space.Bits = address_space.LEAST
) -> str | None:
    """Return why this host cannot pass *gpu* through to a guest, and the remedy."""
    return next(obstacles(gpu, roots, room), None)


def obstacles(
    gpu: model.GPU, roots: Roots, room: address_space.Bits = address_space.LEAST
) -> Iterator[str]:
    """Yield all reasons of which :func:`obstacle` returns the first.

    A sysfs attribute that cannot be read is a reason, too.
    """
    return _reasons(
        lambda: without_iommu(gpu.functions, roots),
        lambda: reserved(gpu.functions, roots),
        lambda: _shared_slot(gpu, roots),
        lambda: _strangers(gpu, roots),
        lambda: _group_peers(gpu, roots),
        lambda: _divided(gpu, roots),
        lambda: _on_switched_board(gpu, roots),
        lambda: _coherent(gpu),
        lambda: _too_large(gpu, roots, room),
        lambda: _shows_console(gpu, roots),
        lambda: _shows_firmware(gpu, roots),
    )


def lasting_obstacles(
    gpu: model.GPU, roots: Roots, room: address_space.Bits = address_space.LEAST
) -> Iterator[str]:
    """Yield the reasons that ``nova-gpu host prepare`` and a boot of the host cannot remove."""
    return _reasons(
        lambda: reserved(gpu.functions, roots),
        lambda: _shared_slot(gpu, roots),
        lambda: _strangers(gpu, roots),
        lambda: _on_switched_board(gpu, roots) or _managed(gpu, roots) or _coherent(gpu),
        lambda: _too_large(gpu, roots, room),
    )


def _reasons(*judges: Callable[[], str | None]) -> Iterator[str]:
    for judge in judges:
        try:
            reason = judge()
        except (OSError, ValueError) as error:
            yield unread(error)
            return
        if reason is not None:
            yield reason


def unread(error: Exception) -> str:
    """Return why a card whose sysfs attributes cannot be read is not offered, and the remedy."""
    return f"its files in sysfs cannot be read: {error}; see the kernel's log"


def without_iommu(own: Iterable[model.PciAddress], roots: Roots) -> str | None:
    """Return why no IOMMU separates these functions from the host's memory, and the remedy."""
    remedy = (
        "turn on VT-d or AMD-Vi in the firmware and boot with the arguments that nova-gpu host "
        "prepare prints"
    )
    groups = f"{roots.sysfs}/kernel/iommu_groups"
    for address in own:
        device = sysfs.device(address, roots)
        if sysfs.link(device, "iommu_group") is None:
            # stat raises if the function no longer exists, which has nothing to do with the IOMMU
            os.stat(device)
            if not os.path.isdir(groups) or not os.listdir(groups):
                return f"no IOMMU is on in this host; {remedy}"
            return f"the IOMMU does not cover {address}; {remedy}"
        if _group_name(device) == _NO_IOMMU_GROUP:
            return (
                "it is in vfio's no-IOMMU mode, in which a guest can write to all of the host's "
                f"memory; {remedy}"
            )
    return None


def _group_name(device: str) -> str | None:
    try:
        return sysfs.attribute(f"{device}/iommu_group", "name")
    except FileNotFoundError:
        return None  # few groups have one


def reserved(own: Iterable[model.PciAddress], roots: Roots) -> str | None:
    """Return which of the firmware's memory regions keeps these from guests, and the remedy."""
    for address in own:
        if regions := iommu.direct_regions(address, roots):
            return (
                f"the firmware reserves {regions[0]} of the host's memory for {address} (RMRR, "
                "reserved_regions of its IOMMU group), so the kernel lets no guest have it; turn "
                "that off in the firmware (HPE: conrep, RMRDS), or use another slot or host"
            )
    return None


def _shared_slot(gpu: model.GPU, roots: Roots) -> str | None:
    """Return that the card's slot has functions of the host, as a processor's graphics has.

    AMD's processors have their security processor and USB controllers next to it, with the ids of
    another vendor than the graphics. A guest gets all functions of a slot. Sound is the card's,
    also by a controller of another vendor.
    """
    others = []
    for address in gpu.companions:
        device = sysfs.device(address, roots)
        vendor_id, _ = sysfs.ids(device)
        kind = sysfs.hexadecimal(device, "class") >> 16
        is_other = vendor_id != gpu.product.vendor_id and kind != _MULTIMEDIA
        if is_other or kind == _ENCRYPTION:
            others.append(_described(str(address), roots))
    if not others:
        return None
    return (
        f"its slot has devices of the host: {', '.join(others)}; a processor's graphics is not "
        "given to guests: leave it out of [gpu]addresses, or give a vGPU of it"
    )


def _strangers(gpu: model.GPU, roots: Roots) -> str | None:
    names = strangers(gpu.functions, roots, gpu.group_peers)
    if not names:
        return None
    return (
        f"its IOMMU group {gpu.iommu_group} has devices that are not of the card: "
        f"{', '.join(names)}; put the card into a slot "
        "whose ports have ACS, so that it gets a group of its own"
    )


def _group_peers(gpu: model.GPU, roots: Roots) -> str | None:
    """Return that drivers of the host have cards of its IOMMU group, and the remedy.

    VFIO gives a group to a guest if each of its devices has a driver of VFIO or none
    (Documentation/driver-api/vfio.rst). The card itself is no exception: it would go back to its
    driver after a guest, while another guest has the group.
    """
    names = [
        _described(str(function), roots)
        for function in (*gpu.functions, *gpu.group_peers)
        if iommu.driver(function, roots) is not None and not iommu.is_with_vfio(function, roots)
    ]
    if not gpu.group_peers or not names:
        return None
    return (
        f"its IOMMU group {gpu.iommu_group} has several cards, and not all are bound to vfio-pci: "
        f"{', '.join(names)}; bind all of them at boot with nova-gpu host prepare"
    )


def strangers(
    own: Iterable[model.PciAddress], roots: Roots, peers: Iterable[model.PciAddress] = ()
) -> list[str]:
    """Return the other devices in the IOMMU groups of *own*, each as ``0000:81:00.1 (driver)``.

    Bridges are left out, because they do not prevent passthrough, and so are *peers*: functions of
    cards that nova-gpu gives to the same guest only.
    """
    addresses = tuple(own)
    members = {name for address in addresses for name in iommu.group_members(address, roots)}
    others = sorted(members.difference(map(str, (*addresses, *peers))))
    return [_described(name, roots) for name in others if not _is_bridge(name, roots)]


def _is_bridge(name: str, roots: Roots) -> bool:
    try:
        model.PciAddress.parse(name)
        return sysfs.hexadecimal(sysfs.device(name, roots), "class") >> 8 in _BRIDGES
    except (OSError, ValueError, exception.InvalidPciAddress):
        return False


def _described(name: str, roots: Roots) -> str:
    try:
        driver = sysfs.link(sysfs.device(name, roots), "driver")
    except OSError:
        driver = None
    return f"{name} ({driver or 'no driver'})"


def _divided(gpu: model.GPU, roots: Roots) -> str | None:
    """Return that the card has SR-IOV virtual functions or mediated devices, and the remedy."""
    for address in gpu.functions:
        device = sysfs.device(address, roots)
        # Not sriov_numvfs: a process that reads it waits while a driver does not release the
        # function.
        if virtual := sum(name.startswith("virtfn") for name in os.listdir(device)):
            return (
                f"it has {virtual} SR-IOV virtual functions; "
                f"{vendors.of(gpu.product.vendor_id).how_to_remove_functions(address)}"
            )
        if uuids := _mediated_devices(device):
            return (
                f"it has the mediated device {uuids[0]}; remove the card's mediated devices, and "
                "the card from [devices]enabled_mdev_types"
            )
    return None


def _mediated_devices(device: str) -> list[str]:
    folder = f"{device}/mdev_supported_types"
    try:
        types = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(
        uuid for vgpu_type in types for uuid in os.listdir(f"{folder}/{vgpu_type}/devices")
    )


def _on_switched_board(gpu: model.GPU, roots: Roots) -> str | None:
    name = nvswitch.board(gpu, roots)
    reason = nvswitch.out_of_reach(gpu, roots) if name else None
    return f"{name} is a module of an HGX board: {reason}" if reason else None


def _coherent(gpu: model.GPU) -> str | None:
    """Return why a superchip's GPU is not given: its memory is in no BAR.

    nvgrace-gpu-vfio-pci shows it to guests, with NUMA nodes that Nova does not define; with
    vfio-pci the guest's driver finds no memory.
    """
    if gpu.product.key not in _COHERENT:
        return None
    return (
        f"the memory of {gpu.product.name or gpu.product.key} is coherent with the processor's, "
        "and Nova defines no guest that can use it (nvgrace-gpu-vfio-pci); use the host for LXC "
        "guests"
    )


def _managed(gpu: model.GPU, roots: Roots) -> str | None:
    """Return why a card on a board with NVSwitches must not be bound to vfio-pci at boot."""
    name = nvswitch.board(gpu, roots)
    if name is None:
        return None
    return (
        f"{name} is a module of an HGX board: NVIDIA's driver must have it when Fabric Manager "
        "starts; leave it bound to that driver until a guest gets it and it is bound to vfio-pci"
    )


def _too_large(gpu: model.GPU, roots: Roots, room: address_space.Bits) -> str | None:
    card = card_bars(gpu, roots)
    if any(room.setting([card], guest) for guest in SMALL_GUESTS):
        return None
    name = gpu.product.name or gpu.product.key
    needed = address_space.in_gib(address_space.window(card))
    if room.given_gib is not None:
        return (
            f"{name} maps {needed} GiB of memory, and [gpu]guest_mmio_gib says that a guest has "
            f"room for {room.given_gib} GiB; unset that option, and a guest gets the room it needs"
        )
    return (
        f"{name} maps {needed} GiB of memory, and guests of this host have {room.most} address "
        f"bits, which is {address_space.in_gib(1 << room.most)} GiB for that and their own memory; "
        "see [libvirt]cpu_mode, or what limits the host's processor or IOMMU"
    )


def _shows_console(gpu: model.GPU, roots: Roots) -> str | None:
    reason = consoles.console(gpu.functions, roots)
    if reason is None:
        return None
    return (
        f"{reason}; make another display the host's in its firmware, or name the card in "
        "[gpu]addresses and prepare it for guests with nova-gpu host prepare"
    )


def _shows_firmware(gpu: model.GPU, roots: Roots) -> str | None:
    name = consoles.firmware_framebuffer(gpu.functions, roots)
    if name is None:
        return None
    return (
        f"the firmware's framebuffer ({name} in /proc/iomem) is in its memory, which QEMU cannot "
        "map then; boot with initcall_blacklist=sysfb_init, or make another display the host's in "
        "its firmware"
    )
