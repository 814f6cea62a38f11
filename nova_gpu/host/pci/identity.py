# SPDX-License-Identifier: Apache-2.0
"""Identifiers by which a card is recognised in any slot: serial numbers and uuids.

A PCI address identifies a slot, and changes when another card or disk is added, because the
firmware renumbers the buses. Identifiers by kind::

    {"nvidia": "GPU-4a2b...", "amdgpu": "f1b9...", "pcie": "00-04-4b-ff-fe-12-34-56"}

Sources: /proc/driver/nvidia/gpus/.../information of NVIDIA's driver; unique_id of amdgpu
(Documentation/gpu/amdgpu/driver-misc.rst); the Device Serial Number of the PCI Express Base
Specification (7.9.3), which lies in the extended configuration space that only root can read. Many
cards have no readable identifier while they are bound to vfio-pci.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping

from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.nvidia import proc
from nova_gpu.host.pci import config_space, sysfs
from nova_gpu.host.roots import Roots

Identity = Mapping[str, str]

_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UNIQUE_ID = re.compile(r"[0-9a-f]{1,16}")
_SERIAL_NUMBER = 0x0003


def read(card: GPU, roots: Roots) -> Identity:
    """Return the card's identifiers by kind, as far as this process can read them."""
    identities = {
        "nvidia": card.uuid or _nvidia(card.address, roots),
        "amdgpu": _amdgpu(sysfs.device(card.address, roots)),
        "pcie": serial_number(card.address, roots),
    }
    return {kind: value for kind, value in identities.items() if value}


def same(one: Identity, other: Identity) -> bool | None:
    """Return whether both identify the same card, ``None`` if they have no kind in common."""
    common = one.keys() & other.keys()
    return all(one[kind] == other[kind] for kind in common) if common else None


def addresses(product: str, roots: Roots) -> frozenset[str]:
    """Return the addresses of all the host's cards of *product* (``10de:2335``), offered or not.

    :raises OSError: if sysfs cannot be read
    """
    folder = f"{roots.sysfs}/bus/pci/devices"
    present = set()
    for name in os.listdir(folder):
        device = f"{folder}/{name}"
        try:
            if ":".join(sysfs.ids(device)) == product and sysfs.link(device, "physfn") is None:
                present.add(name)
        except (OSError, ValueError):
            continue  # gone meanwhile, or no card that anybody is given
    return frozenset(present)


def _nvidia(address: PciAddress, roots: Roots) -> str | None:
    uuid = proc.card(address, roots).get("GPU UUID", "")
    return uuid if _UUID.fullmatch(uuid) else None


def _amdgpu(device: str) -> str | None:
    try:
        text = sysfs.attribute(device, "unique_id").lower()
    except OSError:
        return None
    return text if _UNIQUE_ID.fullmatch(text) and text.strip("0") else None


def serial_number(address: PciAddress, roots: Roots) -> str | None:
    """Return the PCI Express serial number, ``None`` if there is none or only root can read it."""
    try:
        config = config_space.read(sysfs.device(address, roots))
    except OSError:
        return None
    offset = config_space.extended_capability(config, _SERIAL_NUMBER)
    if offset is None:
        return None
    (number,) = struct.unpack_from("<Q", config, offset + 4)
    return number.to_bytes(8).hex("-") if number not in (0, 2**64 - 1) else None
