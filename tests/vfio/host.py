# SPDX-License-Identifier: Apache-2.0
"""The VM's own view of its PCI functions, read without the code under test."""

from __future__ import annotations

import os
import pathlib
import subprocess

_DEVICES = pathlib.Path("/sys/bus/pci/devices")


def functions(card: str) -> list[str]:
    """The functions in the slot of *card*."""
    slot = card.rpartition(".")[0]
    return sorted(path.name for path in _DEVICES.glob(f"{slot}.*"))


def driver(address: str) -> str | None:
    link = _DEVICES / address / "driver"
    return os.path.basename(os.readlink(link)) if link.exists() else None


def drivers(*cards: str) -> list[str | None]:
    """Of all functions of those cards."""
    return [driver(function) for card in cards for function in functions(card)]


def override(address: str) -> str | None:
    text = (_DEVICES / address / "driver_override").read_text().strip()
    return None if text in ("", "(null)") else text


def group(address: str) -> int:
    return int(os.path.basename(os.readlink(_DEVICES / address / "iommu_group")))


def group_members(address: str) -> list[str]:
    return sorted(os.listdir(_DEVICES / address / "iommu_group" / "devices"))


def class_code(address: str) -> int:
    return int((_DEVICES / address / "class").read_text(), 16)


def open_groups() -> list[str]:
    """The groups that vfio has, by the names of their nodes."""
    return sorted(path.name for path in pathlib.Path("/dev/vfio").iterdir() if path.name != "vfio")


def unbind(address: str) -> None:
    (_DEVICES / address / "driver" / "unbind").write_text(address)


def override_by(address: str, driver: str) -> None:
    """No name: none but the drivers that know the device."""
    (_DEVICES / address / "driver_override").write_text(f"{driver}\n")


def probe(address: str) -> None:
    (_DEVICES.parent / "drivers_probe").write_text(address)


def remove(address: str) -> subprocess.Popen[bytes]:
    """Takes the function off the bus, which the kernel does when nobody has it any more."""
    return subprocess.Popen(["sh", "-c", 'echo 1 >"$0"', str(_DEVICES / address / "remove")])


def rescan() -> None:
    (_DEVICES.parent / "rescan").write_text("1")
