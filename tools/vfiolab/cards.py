# SPDX-License-Identifier: Apache-2.0
"""What is on the VM's PCI bus: cards for guests, and cards that no guest can be given."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import struct

# QEMU's own displays have this id and no option to change it.
_PLAIN = (0x1234, 0x1111)
# What they are here: a Tesla M2090, which nova-gpu's table knows as Fermi.
VENDOR_ID, PRODUCT_ID = "10de", "1091"

_QEMU = pathlib.Path("/usr/bin/qemu-system-x86_64")


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """A root port with what is behind it. ``devices`` are QEMU's words, ``{bus}`` being the port's;
    ``port`` is the port's place on the root bus, its options behind it. ``unsaved``: QEMU refuses
    to save the last of the devices."""

    port: str
    devices: tuple[str, ...]
    unsaved: bool = False


_DISPLAY = "secondary-vga,bus={bus},addr=0.0,multifunction=on"
_AUDIO = "intel-hda,bus={bus},addr=0.1"

# The kernel numbers buses in the order of the ports, and so do these names.
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
    # No card: for Nova's own PCI passthrough, beside the cards.
    Slot("0x9", ("e1000e,bus={bus}",)),
    # No card either, but the one device of QEMU 7.2 that has virtual functions.
    Slot(
        "0xa",
        (
            "nvme-subsys,id=subsystem",
            "nvme,bus={bus},serial=1,subsys=subsystem,sriov_max_vfs=2,max_ioqpairs=6,msix_qsize=7,"
            "sriov_vq_flexible=4,sriov_vi_flexible=2",
        ),
        unsaved=True,
    ),
    # Eight devices that do nothing and that QEMU saves: they pretend to be the cards of one board.
    *(
        Slot(f"0xb.{number}{'' if number else ',multifunction=on'}", ("pvpanic-pci,bus={bus}",))
        for number in range(8)
    ),
)
# Their addresses.
WHOLE = ("0000:01:00.0", "0000:02:00.0")
OTHER = "0000:03:00.0"
BEHIND_BRIDGE, ON_BRIDGE = "0000:05:01.0", "0000:05:02.0"
WITH_STRANGER, STRANGER = "0000:06:00.0", "0000:07:00.0"
NETWORK = "0000:08:00.0"
DIVIDED = "0000:09:00.0"
BOARD = tuple(f"0000:{bus:02x}:00.0" for bus in range(0x0A, 0x12))
# Of ati-vga and edu QEMU saves nothing, not even where their memory is.
FORGOTTEN = (OTHER, ON_BRIDGE)


def arguments(*, saved: bool = False) -> list[str]:
    """QEMU's. *saved*: of a VM that is to be saved, or that was; it lacks :func:`late`."""
    words = []
    for number, slot in enumerate(SLOTS, start=1):
        bus = _bus(number)
        port = f"pcie-root-port,id={bus},chassis={number},slot={number},bus=pcie.0,addr={slot.port}"
        devices = slot.devices[: -1 if saved and slot.unsaved else None]
        for device in (port, *(each.format(bus=bus) for each in devices)):
            words += ["-device", device]
    return words


def late() -> list[dict[str, str]]:
    """What is plugged into a VM that goes on, as the arguments of QMP's ``device_add``."""
    found = []
    for number, slot in enumerate(SLOTS, start=1):
        if slot.unsaved:
            driver, *options = slot.devices[-1].format(bus=_bus(number)).split(",")
            pairs = (each.partition("=") for each in options)
            found.append({"driver": driver, **{name: value for name, _, value in pairs}})
    return found


def _bus(number: int) -> str:
    return f"port{number}"


def emulator(folder: pathlib.Path) -> pathlib.Path:
    """A copy in *folder* of the machine's QEMU whose displays have the pretended id.

    :raises ValueError: where this build of QEMU has the id elsewhere than expected
    """
    program = _QEMU.read_bytes()
    plain = struct.pack("<HH", *_PLAIN)
    if (count := program.count(plain)) != 1:
        raise ValueError(f"{_QEMU} has the PCI id of its displays {count} times, not once")
    pretended = struct.pack("<HH", int(VENDOR_ID, 16), int(PRODUCT_ID, 16))
    path = folder / _QEMU.name
    path.write_bytes(program.replace(plain, pretended))
    shutil.copymode(_QEMU, path)
    return path
