# SPDX-License-Identifier: Apache-2.0
"""PCI Express ports that let a guest's card reach other cards past the IOMMU.

Access Control Services (ACS) of a port send the requests of the devices below it up to the IOMMU.
The kernel's IOMMU groups do not prove that they are on. They are made when the host boots, and
``setpci`` may clear the control register later; the argument ``pcie_acs_override`` separates groups
without any ACS; and the kernels before the change "Fix incorrect iommu_groups with PCIe ACS"
(linux-iommu, 2025) give each port of a switch without ACS a group of its own
(drivers/iommu/iommu.c, pci_device_group).
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterable

from nova_gpu.core.model import PciAddress
from nova_gpu.host.pci import config_space, sysfs
from nova_gpu.host.roots import Roots

# include/uapi/linux/pci_regs.h
_EXPRESS, _ACS = 0x10, 0x000D
_ROOT_PORT, _DOWNSTREAM_PORT = 4, 6

# What the kernel requires of a port that separates groups: REQ_ACS_FLAGS in drivers/iommu/iommu.c
_REQUIRED = {
    0x01: "source validation",
    0x04: "request redirect",
    0x08: "completion redirect",
    0x10: "upstream forwarding",
}

# Root ports of Intel chipsets whose control register is four bytes further on
# (pci_quirk_intel_spt_pch_acs_match in drivers/pci/quirks.c)
_INTEL = 0x8086
_DISPLACED = frozenset(
    [
        *(*range(0x9D10, 0x9D1C), *range(0xA110, 0xA120), *range(0xA167, 0xA16B)),
        *(*range(0xA290, 0xA2A0), *range(0xA2E7, 0xA2EF)),
    ]
)

# The kernel takes - for _ in a name, and quotation marks around an argument (kernel/params.c).
_OVERRIDE = re.compile(rb'(?:^|\s)"?pcie[_-]acs[_-]override=\S')
_UNSAFE_INTERRUPTS = (
    "vfio_iommu_type1/parameters/allow_unsafe_interrupts",
    "iommufd/parameters/allow_unsafe_interrupts",
)


def ports(cards: Iterable[PciAddress], roots: Roots) -> dict[str, frozenset[PciAddress]]:
    """Return the ports on which the separation of *cards* depends, and the cards, by address.

    These are the downstream ports of a switch with cards below several of them, and the root ports
    of one slot in the same way. The kernel takes root ports of different slots to be separated, and
    so does this.
    """
    below: dict[str, dict[str, set[PciAddress]]] = {}
    for card in cards:
        _, bridges = sysfs.path(sysfs.device(card, roots))
        # A root port, then for each switch its upstream port and one of its downstream ports
        around = [bridges[0].rpartition(".")[0], *bridges] if bridges else []
        for outer, port in list(itertools.pairwise(around))[::2]:
            below.setdefault(outer, {}).setdefault(port, set()).add(card)
    return {
        port: frozenset[PciAddress]().union(*siblings.values())
        for siblings in below.values()
        if len(siblings) > 1
        for port in siblings
    }


def read(ports: Iterable[str], roots: Roots) -> dict[str, str | None]:
    """Return what is wrong with each port, ``None`` if it separates the devices below it.

    Ports that cannot be read, for example because only root can, are left out.
    """
    faults = {}
    for port in ports:
        try:
            faults[port] = _fault(config_space.read(sysfs.device(port, roots)), roots)
        except OSError:
            continue
    return faults


def _fault(config: bytes, roots: Roots) -> str | None:
    express = config_space.capability(config, _EXPRESS)
    kind = None if express is None else config[express + 2] >> 4
    if kind not in (_ROOT_PORT, _DOWNSTREAM_PORT):
        return None  # other bridges: the kernel puts what is below them into one group
    offset = config_space.extended_capability(config, _ACS)
    if offset is None:
        # The kernel knows root ports that are separated without ACS (pci_dev_acs_enabled in
        # drivers/pci/quirks.c); its groups count unless they were overridden.
        if kind == _ROOT_PORT and not is_overridden(roots):
            return None
        return "has no ACS"
    vendor, device = struct.unpack_from("<HH", config)
    displaced = vendor == _INTEL and device in _DISPLACED
    (able,) = struct.unpack_from("<H", config, offset + 4)
    (control,) = struct.unpack_from("<H", config, offset + (8 if displaced else 6))
    # What a port is not able to do is always on (pci_acs_flags_enabled in drivers/pci/pci.c).
    off = [name for bit, name in _REQUIRED.items() if able & bit and not control & bit]
    return f"has ACS off ({', '.join(off)})" if off else None


def is_overridden(roots: Roots) -> bool:
    """Return whether the kernel's command line makes up ACS for its IOMMU groups."""
    try:
        return bool(_OVERRIDE.search((roots.proc / "cmdline").read_bytes()))
    except OSError:
        return False


def unsafe_interrupts(roots: Roots) -> str | None:
    """Return the module parameter with which guests' cards need no interrupt remapping."""
    for name in _UNSAFE_INTERRUPTS:
        try:
            if sysfs.attribute(f"{roots.sysfs}/module", name) in ("Y", "1"):
                return name.replace("/parameters/", ".")
        except OSError:
            continue
    return None
