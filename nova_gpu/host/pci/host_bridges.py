# SPDX-License-Identifier: Apache-2.0
"""Root complexes that forward peer-to-peer requests from one card to another.

PCI Express does not require it, and sysfs does not show it. Linux has a list for its own DMA
between devices (``host_bridge_whitelist`` in drivers/pci/p2pdma.c); this module has the same list.

The ports and switches below the root complex do not matter: if a card has an IOMMU group of its
own, they send all its requests up to the root complex (``pci_acs_path_enabled``). There the IOMMU
translates the guest's addresses, and QEMU has mapped the memory of the guest's other cards.
"""

from __future__ import annotations

import os

from nova_gpu.host import processor
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

# Every AMD processor from this family on
_ZEN = 0x17
_INTEL = 0x8086
# The first device on the root buses of Intel's root complexes that forward requests to any other:
# of Skylake-SP and its relatives, from Ice Lake-SP on, and those that Linux has added for Sapphire
# Rapids and later. Older ones forward only between two ports of one root.
_PASSING = frozenset(
    {
        *(0x2020, 0x2030, 0x2031, 0x2032, 0x2033),
        0x09A2,
        *(0x0B25, 0x0CFE, 0x11FB, 0x1212, 0x1216, 0x4940, 0x4942, 0x4944, 0x4946, 0x4948),
    }
)
_ROOT_PORT = 0x0604


def pass_on(pci_root: str, roots: Roots) -> bool:
    """Return whether cards below *pci_root* can send requests to cards below other root buses.

    Return false if it is unknown.
    """
    model = processor.of_host(roots)
    if model.is_amd and (model.family or 0) >= _ZEN:
        return True
    bus = pci_root.removeprefix("pci")
    folder = f"{roots.sysfs}/devices/{pci_root}"
    try:
        # Linux' list has the first device on each root bus.
        first = min(name for name in os.listdir(folder) if name.startswith(f"{bus}:"))
        device = f"{folder}/{first}"
        if first != f"{bus}:00.0" and sysfs.hexadecimal(device, "class") >> 8 != _ROOT_PORT:
            return False
        is_intel = sysfs.hexadecimal(device, "vendor") == _INTEL
        return is_intel and sysfs.hexadecimal(device, "device") in _PASSING
    except (OSError, ValueError):  # also where no device is on it
        return False
