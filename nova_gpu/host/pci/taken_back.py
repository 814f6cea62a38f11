# SPDX-License-Identifier: Apache-2.0
"""How an operator takes the virtual functions from a card: each vendor has its own way."""

from __future__ import annotations

from nova_gpu.host.pci import products


def remedy(vendor_id: str, address: object) -> str:
    """What to do, for people.

    NVIDIA's driver refuses a write to sriov_numvfs (bigstack-oss/cubecos#905); AMD's have no
    sriov_configure, so that there is nothing to write to, and gim makes and takes them as it is
    loaded and unloaded (amd/MxGPU-Virtualization, gim_shim/gim_drv.c).
    """
    if vendor_id == products.NVIDIA:
        return f"run /usr/lib/nvidia/sriov-manage -d {address} while no guest has one"
    if vendor_id == products.AMD:
        return "unload the module gim, which made them, while no guest has one (modprobe -r gim)"
    return f"write 0 to /sys/bus/pci/devices/{address}/sriov_numvfs while no guest has one"
