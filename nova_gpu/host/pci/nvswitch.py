# SPDX-License-Identifier: Apache-2.0
"""Cards on boards with NVSwitches, which work only after NVIDIA's Fabric Manager set those up."""

from __future__ import annotations

import functools
import os
import re

from nova_gpu.core import model, vendors
from nova_gpu.host import products
from nova_gpu.host.pci import iommu, sysfs
from nova_gpu.host.roots import Roots

# "Other bridge" in the kernel's include/linux/pci_ids.h; NVIDIA's devices of that class are
# NVSwitches
_SWITCH_CLASS = 0x0680
# B100, B200, B300 and the superchips made of them exist in no other form.
_MODULE = re.compile(r"\b(HGX|SXM\d?|G?B[123]00)\b")
# The older generations with NVSwitches, and the marks of a card for a slot in their names. Modules
# are not always marked: H20 and H800 are just called that.
_SWITCHED = frozenset({"volta", "ampere", "hopper"})
_PLUG_IN = re.compile(
    r"\b(PCIE|NVL|CNX|FHHL|H\d00L|A(2|10|16|30|40)[A-Z]?|A100X)\b"
    r"|RTX|GEFORCE|QUADRO|TITAN|CMP|CONVERGED"
)
# From Blackwell on the switches are not PCI functions of NVIDIA's, and every such board has them.
_SWITCHES_UNSEEN = frozenset({"blackwell", "rubin"})


def board(gpu: model.GPU, roots: Roots) -> str | None:
    """Return the product name of a card that is a module on a board with NVSwitches.

    Return ``None`` for other cards. The four-card boards before Blackwell have no NVSwitch.
    """
    if gpu.product.vendor_id != vendors.NVIDIA:
        return None
    # The name in the table: the names of NVML and [gpu]product may not tell the form of a card.
    listed = products.table().get(gpu.product.key, gpu.product)
    name = listed.name or gpu.product.name
    shown = (name or "").upper()
    if listed.architecture in _SWITCHES_UNSEEN:
        return name if _MODULE.search(shown) else None
    if name is not None and (listed.architecture not in _SWITCHED or _PLUG_IN.search(shown)):
        return None
    try:
        there = bool(switches(roots))
    except OSError:
        there = True
    return (name or f"the product {gpu.product.key}") if there else None


def out_of_reach(gpu: model.GPU, roots: Roots) -> str | None:
    """Return why no Fabric Manager here can set up the card's NVSwitches, and the remedy."""
    listed = products.table().get(gpu.product.key, gpu.product)
    if listed.architecture in _SWITCHES_UNSEEN:
        return (
            "its NVSwitches are of the fifth generation of NVLink, behind network functions that a "
            "subnet manager drives (NVLSM), and nova-gpu does not support those; use the host for "
            "LXC guests"
        )
    addresses = sorted(name for name in switches(roots) if _is_given(name, roots))
    if addresses:
        return (
            f"its NVSwitch {addresses[0]} is bound to vfio-pci: a service VM has the switches and "
            "their Fabric Manager, which nova-gpu cannot control; give the switches back to the "
            "host, and run nvidia-fabricmanager there"
        )
    return None


def switches(roots: Roots) -> frozenset[str]:
    """Return the addresses of the NVSwitches on the host's PCI bus."""
    return _among(roots, frozenset(os.listdir(f"{roots.sysfs}/bus/pci/devices")))


# Each card of a board calls this. A function's class does not change while the function exists, and
# a host with eight cards has hundreds of functions.
@functools.lru_cache(maxsize=1)
def _among(roots: Roots, names: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in names if _is_switch(sysfs.device(name, roots)))


def _is_given(name: str, roots: Roots) -> bool:
    try:
        return iommu.is_with_vfio(model.PciAddress.parse(name), roots)
    except OSError:
        return False  # gone meanwhile


def _is_switch(device: str) -> bool:
    try:
        return (
            sysfs.hexadecimal(device, "vendor") == int(vendors.NVIDIA, 16)
            and sysfs.hexadecimal(device, "class") >> 8 == _SWITCH_CLASS
        )
    except (OSError, ValueError):
        return False  # gone meanwhile
