# SPDX-License-Identifier: Apache-2.0
"""The VM's PCI bus: cards for guests, and cards that guests cannot have."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import struct

# QEMU's own displays have this id and no option to change it.
_PLAIN = (0x1234, 0x1111)
# The id of the pretended cards: a Tesla M2090, which nova-gpu's table knows as Fermi.
VENDOR_ID, PRODUCT_ID = "10de", "1091"
# The downstream ports of QEMU's switches have no ACS capability, so the devices behind them would
# share one IOMMU group. The kernel knows that Zhaoxin's ports with these ids separate devices
# without it (drivers/pci/quirks.c).
_DOWNSTREAM = (0x104C, 0x8233)
_SEPARATING = (0x1D17, 0x0721)

_QEMU = pathlib.Path("/usr/bin/qemu-system-x86_64")


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """A root port, and the devices behind it.

    ``devices`` are arguments of QEMU, in which ``{bus}`` stands for the port's bus; ``port`` is the
    port's place on the bus ``root``, followed by its options. ``unsaved``: QEMU refuses to save the
    last of the devices.
    """

    port: str
    devices: tuple[str, ...]
    unsaved: bool = False
    root: str = "pcie.0"


def _switch(name: str, chassis: int) -> tuple[str, ...]:
    """Return the devices of a switch with two of the idle devices of :data:`BOARD`."""
    words = [f"x3130-upstream,id={name},bus={{bus}}"]
    for number in range(2):
        port = f"{name}port{number}"
        place = f"chassis={chassis},slot={number},bus={name},addr={number:#x}"
        words += [f"xio3130-downstream,id={port},{place}", f"{_IDLE},bus={port}"]
    return tuple(words)


_LARGE = "pci-testdev,membar"
# A device without a function whose state QEMU can save.
_IDLE = "pvpanic-pci"
# The further root buses: bus number, and NUMA node, if any.
_ROOTS = {"near": (0x20, 0), "far": (0x40, 1), "nowhere": (0x60, None)}
# A PCI Express device, because QEMU appends its own capabilities to those of a card.
_DISPLAY = "bochs-display,bus={bus},addr=0.0,multifunction=on"
_AUDIO = "intel-hda,bus={bus},addr=0.1"

# The kernel numbers buses in the order of the ports, and these names follow it.
SLOTS = (
    # Two whole cards of one product.
    Slot("0x4", (_DISPLAY, _AUDIO)),
    Slot("0x5", (_DISPLAY, _AUDIO)),
    # Another product, a VGA controller without a driver.
    Slot("0x6", ("ati-vga,model=rv100,bus={bus},addr=0.0,multifunction=on", _AUDIO)),
    # A display that shares a conventional bus, and so an IOMMU group, with another device.
    Slot(
        "0x7",
        (
            "pcie-pci-bridge,id=conventional,bus={bus}",
            "secondary-vga,bus=conventional,addr=1",
            "edu,bus=conventional,addr=2",
        ),
    ),
    # Two functions of one port without access control: a card whose neighbour is in its group.
    Slot("0x8.0,multifunction=on,disable-acs=on", (_DISPLAY, _AUDIO)),
    Slot("0x8.1,disable-acs=on", ("e1000e,bus={bus}",)),
    # Not a card: a device for Nova's own PCI passthrough, near the cards.
    Slot("0x9", ("e1000e,bus={bus}",)),
    # Not a card either: the only device of QEMU 7.2 that has virtual functions.
    Slot(
        "0xa",
        (
            "nvme-subsys,id=subsystem",
            "nvme,bus={bus},serial=labvm,subsys=subsystem,sriov_max_vfs=2,max_ioqpairs=6,msix_qsize=7,"
            "sriov_vq_flexible=4,sriov_vi_flexible=2",
        ),
        unsaved=True,
    ),
    # Not cards to the host, but their BARs have this size, for which QEMU and firmware must find
    # room.
    *(
        Slot(
            f"0xb.{number}{'' if number else ',multifunction=on'}",
            (f"{_LARGE}={size},bus={{bus}}",),
        )
        for number, size in enumerate(("8G", "64G", "256G"))
    ),
    # Not cards either: eight devices that pretend to be the cards of one board, with two switches
    # on one root, a switch and a port on another, and one card with an unknown NUMA node.
    Slot("0x0", _switch("first", 101), root="near"),
    Slot("0x1", _switch("second", 102), root="near"),
    Slot("0x0", _switch("third", 103), root="far"),
    Slot("0x1", (f"{_IDLE},bus={{bus}}",), root="far"),
    Slot("0x0", (f"{_IDLE},bus={{bus}}",), root="nowhere"),
)
# The addresses of these.
WHOLE = ("0000:01:00.0", "0000:02:00.0")
OTHER = "0000:03:00.0"
BEHIND_BRIDGE, ON_BRIDGE = "0000:05:01.0", "0000:05:02.0"
WITH_STRANGER, STRANGER = "0000:06:00.0", "0000:07:00.0"
NETWORK = "0000:08:00.0"
DIVIDED = "0000:09:00.0"
LARGE = ("0000:0a:00.0", "0000:0b:00.0")
LARGEST = "0000:0c:00.0"
BOARD = tuple(f"0000:{bus:02x}:00.0" for bus in (0x23, 0x24, 0x27, 0x28, 0x43, 0x44, 0x45, 0x61))
# QEMU saves nothing of ati-vga, edu and pci-testdev, not even the addresses of their memory.
FORGOTTEN = (OTHER, ON_BRIDGE, *LARGE, LARGEST)


def arguments(*, saved: bool = False) -> list[str]:
    """Return QEMU's arguments for the cards.

    :param saved: whether the VM will be saved, or was; it then lacks :func:`late`
    """
    words = []
    for number, (name, (bus_number, node)) in enumerate(_ROOTS.items()):
        root = f"pxb-pcie,id={name},bus_nr={bus_number},bus=pcie.0,addr={0xC + number:#x}"
        words += ["-device", root if node is None else f"{root},numa_node={node}"]
    for number, slot in enumerate(SLOTS, start=1):
        bus = _bus(number)
        place = f"bus={slot.root},addr={slot.port}"
        port = f"pcie-root-port,id={bus},chassis={number},slot={number},{place}"
        devices = slot.devices[: -1 if saved and slot.unsaved else None]
        for device in (port, *(device.format(bus=bus) for device in devices)):
            words += ["-device", device]
    return words


def late() -> list[dict[str, str | int]]:
    """Return the devices to plug into a resumed VM, as the arguments of QMP's ``device_add``.

    QEMU 10 takes no text for a number, and no number for a text.
    """
    cards = []
    for number, slot in enumerate(SLOTS, start=1):
        if slot.unsaved:
            driver, *options = slot.devices[-1].format(bus=_bus(number)).split(",")
            pairs = (option.partition("=") for option in options)
            values = {name: int(text) if text.isdigit() else text for name, _, text in pairs}
            cards.append({"driver": driver, **values})
    return cards


def _bus(number: int) -> str:
    return f"port{number}"


def emulator(folder: pathlib.Path) -> pathlib.Path:
    """Return a copy of the machine's QEMU in *folder* whose devices have the pretended ids.

    The ids are those of displays and of switches' ports.

    :raises ValueError: if this build of QEMU has an id at other places as well, or nowhere
    """
    program = _QEMU.read_bytes()
    pretended = (int(VENDOR_ID, 16), int(PRODUCT_ID, 16))
    for name, plain, other, most in (
        # The compiler may write it once for both kinds of them.
        ("displays", _PLAIN, pretended, 2),
        ("switches' ports", _DOWNSTREAM, _SEPARATING, 1),
    ):
        data = struct.pack("<HH", *plain)
        if not 1 <= (count := program.count(data)) <= most:
            raise ValueError(f"{_QEMU} has the PCI id of its {name} {count} times, not 1 to {most}")
        program = program.replace(data, struct.pack("<HH", *other))
    path = folder / _QEMU.name
    path.write_bytes(program)
    shutil.copymode(_QEMU, path)
    return path
