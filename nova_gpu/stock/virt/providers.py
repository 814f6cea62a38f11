# SPDX-License-Identifier: Apache-2.0
"""Stock Nova's resource providers of PCI devices and of cards that it divides."""

from __future__ import annotations

import re

from nova_gpu.core.model import PciAddress

# host1_0000:3B:00.0, and host1_pci_0000_3b_00_0 of mediated devices: Nova's
# compute/pci_placement_translator.py, and _update_provider_tree_for_vgpu of its libvirt driver
_ADDRESS_AT_END = re.compile(
    r"_([0-9a-f]{4,8})[:_]([0-9a-f]{2})[:_]([0-9a-f]{2})[._]([0-7])$", re.IGNORECASE
)


def function_of(name: str) -> PciAddress | None:
    """Return the PCI function whose provider has this *name*, ``None`` for other providers."""
    match = _ADDRESS_AT_END.search(name)
    return PciAddress.parse("{}:{}:{}.{}".format(*match.groups())) if match else None
