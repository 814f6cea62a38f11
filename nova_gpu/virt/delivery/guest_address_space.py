# SPDX-License-Identifier: Apache-2.0
"""The address space for the BARs of a guest's cards: its size, and the refusal of a guest."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import exception
from nova_gpu.core.guest import address_space
from nova_gpu.core.guest.address_space import Bits, Guest
from nova_gpu.core.model import GPU
from nova_gpu.host import processor
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import passthrough

if TYPE_CHECKING:
    from nova import objects

    from nova_gpu.core.flavor.request import FlavorRequest

_Answer = TypeVar("_Answer")

# The values of [libvirt]cpu_mode with which a guest has the address bits of the host's processor
AS_THE_HOST = ("host-passthrough", "maximum")
# libvirt 9.3.0 (its NEWS): maxphysaddr has the attribute limit
_LIMIT_SINCE = 9003000
_MODE, _BITS = "hw:maxphysaddr_mode", "hw:maxphysaddr_bits"


def of_host(roots: Roots) -> Bits:
    """Return how much address space this host's guests can have if flavor and image set nothing."""
    return _room(roots, None, None)


def most(cards: Collection[GPU], roots: Roots) -> int:
    """Return how many of *cards*, all of one product, fit into the address space of any one guest.

    That is the guest with the most room: little memory, and the firmware and the address bits (by
    its flavor) that leave most.
    """
    bars = []
    for card in cards:
        with contextlib.suppress(OSError, ValueError):
            bars.append(passthrough.card_bars(card, roots))
    bars.sort(key=address_space.window)
    # A card that cannot be read, for example because it is gone, counts like the smallest one.
    bars[:0] = bars[:1] * (len(cards) - len(bars))
    if not bars:
        return len(cards)
    rooms = [of_host(roots), _room(roots, "passthrough", None)]
    return max(room.most_of(bars, guest) for room in rooms for guest in passthrough.SMALL_GUESTS)


def limit(roots: Roots) -> int | None:
    """Return the address bits of the IOMMU if they are fewer than those of the host's processor."""
    host = processor.of_host(roots)
    return host.usable_bits if host.usable_bits != host.address_bits else None


def can_limit(libvirt_version: int | None) -> bool:
    """Return whether libvirt can limit the address bits of a guest with the host's processor."""
    return libvirt_version is not None and libvirt_version >= _LIMIT_SINCE


def unlimited(roots: Roots, libvirt_version: int | None) -> str | None:
    """Return that guests with the host's processor have too many address bits, and the remedy."""
    bits = limit(roots)
    if bits is None or can_limit(libvirt_version):
        return None
    return (
        f"a guest with the {processor.of_host(roots).address_bits} address bits of the host's "
        f"processor puts memory of its cards where the host's IOMMU cannot map it ({bits} bits); "
        "install libvirt 9.3 or newer, or set [libvirt]cpu_mode = host-model"
    )


def refuse(
    instance: objects.Instance,
    request: FlavorRequest,
    cards: Sequence[GPU],
    roots: Roots,
    *,
    tree: bool = False,
) -> None:
    """Refuse a guest with too little address space for its cards."""
    setting(instance, request, cards, roots, is_uefi=_is_uefi(instance), tree=tree)


def has_room(
    instance: objects.Instance,
    request: FlavorRequest,
    cards: Sequence[GPU],
    roots: Roots,
    *,
    tree: bool,
) -> bool:
    """Return whether the guest has enough address space for its cards."""
    try:
        refuse(instance, request, cards, roots, tree=tree)
    except exception.GuestUnfit:
        return False
    return True


def with_io(instance: objects.Instance, cards: Sequence[GPU], roots: Roots) -> int:
    """Return how many of *cards* get I/O ports from the guest's firmware; 0 unless it is UEFI."""
    if not _is_uefi(instance):
        return 0
    return sum(_read(passthrough.has_io_bar, card, roots) for card in cards)


def _is_uefi(instance: objects.Instance) -> bool:
    # The value of nova.objects.fields.FirmwareType.UEFI, whose import takes a second
    return bool(instance.image_meta.properties.get("hw_firmware_type") == "uefi")


def setting(
    instance: objects.Instance,
    request: FlavorRequest,
    cards: Sequence[GPU],
    roots: Roots,
    *,
    is_uefi: bool,
    tree: bool = False,
) -> address_space.Setting:
    """Return what the guest's domain must set, so that the BARs of its cards fit.

    :param tree: whether the guest gets the host's PCI Express tree, with several PCI roots
    :raises GuestUnfit: if they do not fit with any setting
    :raises DeviceUnavailable: if a card cannot be read
    """
    properties = instance.image_meta.properties
    # As Nova's _get_guest_cpu_config_maxphysaddr() reads them
    mode = request.extra_specs.get(_MODE) or properties.get("hw_maxphysaddr_mode")
    bits = request.extra_specs.get(_BITS) or properties.get("hw_maxphysaddr_bits")
    room = _room(roots, mode, int(bits) if bits else None)
    guest = Guest(instance.flavor.memory_mb << 20, is_uefi, 16 + CONF.libvirt.num_pcie_ports, tree)
    bars = [_read(passthrough.card_bars, card, roots) for card in cards]
    needed_bits = room.setting(bars, guest)
    if needed_bits is None:
        raise _unfit(room, bars, guest, roots, is_asked=mode is not None)
    return needed_bits


def _read(ask: Callable[[GPU, Roots], _Answer], card: GPU, roots: Roots) -> _Answer:
    try:
        return ask(card, roots)
    except (OSError, ValueError) as error:
        raise exception.DeviceUnavailable(
            str(card.address), f"it cannot be read: {error}", "see the kernel's log of the host"
        ) from error


def _room(roots: Roots, mode: str | None, bits: int | None) -> Bits:
    host = processor.of_host(roots)
    default = address_space.DEFAULT_BITS
    # Nova's default for an unset [libvirt]cpu_mode
    default_mode = "host-model" if NOVAS.libvirt.virt_type == "kvm" else "none"
    cpu_mode = NOVAS.libvirt.cpu_mode or default_mode
    # A guest without a CPU model gets QEMU's default, which lacks pages of 1 GiB; nova-gpu adds
    # them to any other model.
    gib_pages = host.gib_pages and cpu_mode != "none"
    if mode == "passthrough" or cpu_mode in AS_THE_HOST:
        # A guest that libvirt cannot limit has more, but what it puts there cannot be mapped.
        least = most = host.usable_bits or default
    elif mode is not None and bits is not None:
        least = most = bits
    elif cpu_mode == "none":
        least = most = default
    else:
        least, most = default, host.usable_bits or default
    return Bits(least, most, host.is_amd, CONF.gpu.guest_mmio_gib, gib_pages)


def _unfit(
    room: Bits, bars: Iterable[address_space.Bars], guest: Guest, roots: Roots, *, is_asked: bool
) -> exception.GuestUnfit:
    cards = list(bars)
    # The whole message must fit into the 255 characters that Nova keeps of a fault.
    needed = f"together they map {address_space.in_gib(sum(map(address_space.window, cards)))} GiB"
    if room.given_gib is not None:
        return exception.GuestUnfit(
            f"{needed}, and a guest has room for {room.given_gib} GiB above 4 GiB",
            "ask for fewer, or unset [gpu]guest_mmio_gib on the hosts",
        )
    firmware = "UEFI" if guest.uefi else "BIOS"
    return exception.GuestUnfit(
        f"{needed}, and {firmware} has no room in {room.most} address bits in "
        f"addition to {address_space.in_gib(guest.memory)} GiB of memory",
        _remedy(room, cards, guest, roots, is_asked=is_asked),
    )


def _remedy(
    room: Bits, cards: list[address_space.Bars], guest: Guest, roots: Roots, *, is_asked: bool
) -> str:
    host = of_host(roots)
    if is_asked and host.most > room.most and host.setting(cards, guest):
        return f"leave {_MODE} out of flavor and image, or give more bits"
    facts = processor.of_host(roots)
    bits = facts.usable_bits or 0
    smaller = Bits(bits, bits, room.amd, gib_pages=facts.gib_pages)
    if bits > room.most and smaller.setting(cards, guest):
        return f"set [libvirt]cpu_mode = host-model on hosts, which have {bits} bits"
    if guest.uefi and room.setting(cards, dataclasses.replace(guest, uefi=False)):
        return "ask for fewer, or use an image without hw_firmware_type=uefi"
    return "ask for fewer, or for less memory, or for hosts with more bits"
