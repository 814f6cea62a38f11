# SPDX-License-Identifier: Apache-2.0
"""Which of QEMU's machine types can have a whole card."""

from __future__ import annotations

REMEDY = "set the image property hw_machine_type=q35"


def has_pci_express(machine_type: str) -> bool:
    """True where guests have PCI Express, by the judgement of
    ``LibvirtDriver._guest_needs_pcie``.
    """
    return "q35" in machine_type or machine_type.startswith("virt")


def lacking(machine_type: str | None) -> str:
    """Why a guest of this type cannot have a card"""
    return f"its machine type is {machine_type or 'not set'}, which has no PCI Express ports"
