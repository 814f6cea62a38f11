# SPDX-License-Identifier: Apache-2.0
"""Machine types of guests of KVM and QEMU, and whether such a guest has PCI Express."""

from __future__ import annotations

from nova_gpu.core import exception

Q35_REMEDY = "set the image property hw_machine_type=q35"


def has_pci_express(machine_type: str) -> bool:
    """Return whether guests of this machine type have PCI Express.

    The rule is that of Nova's ``LibvirtDriver._guest_needs_pcie``.
    """
    return "q35" in machine_type or machine_type.startswith("virt")


def no_pci_express(machine_type: str | None) -> str:
    """Return the reason that a guest of this type, which has no PCI Express, cannot have a card."""
    return f"its machine type is {machine_type or 'not set'}, which has no PCI Express ports"


def refuse_without_pci_express(machine_type: str | None) -> None:
    """Refuse a machine type without PCI Express."""
    if machine_type and has_pci_express(machine_type):
        return
    raise exception.GuestUnfit(
        no_pci_express(machine_type),
        f"{Q35_REMEDY} (or on the hosts, for all images without it, [libvirt]hw_machine_type = "
        "x86_64=q35)",
    )
