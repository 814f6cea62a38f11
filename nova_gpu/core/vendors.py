# SPDX-License-Identifier: Apache-2.0
"""The vendors of GPUs: what their cards, drivers and device nodes are, one row each.

A new vendor is a row here, its products in the table of :mod:`nova_gpu.data`, and tests. A feature
that one vendor alone has, such as NVML, is in a module of its own and names the vendor.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

NVIDIA, AMD, INTEL = "10de", "1002", "8086"  # their PCI vendor ids


class FunctionMaker(enum.Enum):
    """What makes a card's SR-IOV virtual functions."""

    KERNEL = "sriov_numvfs has their number"
    SCRIPT = "sriov-manage has run"  # NVIDIA's, which makes all that a card can have
    MODULE = "gim is loaded"  # AMD's module, which makes them when it is loaded


@dataclasses.dataclass(frozen=True, slots=True)
class Vendor:
    """A vendor of GPUs.

    ``names``: how names of its products begin, in small letters, if not as ``name``. ``modules``:
    those that drive its cards, and by driver ``companions`` those that drive other functions of its
    cards, all of which may take a function before vfio-pci does. ``drm_drivers``: those whose
    cards have nodes in /dev/dri only. ``shared_nodes``: the nodes that guests with cards of a
    driver get besides the cards' own; a guest can do without ``optional_nodes``.

    ``has_accelerators``: whether its PCI processing accelerators are GPUs. ``folders``: words in
    the names of folders that are its driver's alone. ``needs_types``: whether its virtual functions
    are of no use to guests without a vGPU type.
    """

    id: str
    name: str
    names: tuple[str, ...] = ()
    has_accelerators: bool = False
    modules: tuple[str, ...] = ()
    companions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    drm_drivers: tuple[str, ...] = ()
    shared_nodes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    optional_nodes: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    needs_types: bool = False
    function_maker: FunctionMaker = FunctionMaker.KERNEL
    removal: str = "write 0 to /sys/bus/pci/devices/{address}/sriov_numvfs while no guest has one"

    def how_to_remove_functions(self, address: object) -> str:
        """Return the instruction for an operator to remove a card's virtual functions."""
        return self.removal.format(address=address)


# In the order in which the files of nova-gpu host prepare have their modules
VENDORS: Mapping[str, Vendor] = {
    vendor.id: vendor
    for vendor in (
        Vendor(
            NVIDIA,
            "NVIDIA",
            modules=("nouveau", "nova_core", "nvidia", "nvidiafb"),
            companions={"nvidia-gpu": "i2c_nvidia_gpu"},
            shared_nodes={"nvidia": ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")},
            optional_nodes=("/dev/nvidia-uvm-tools",),  # for profilers
            folders=("nvidia",),
            needs_types=True,
            # Its driver refuses a write to sriov_numvfs (bigstack-oss/cubecos#905).
            function_maker=FunctionMaker.SCRIPT,
            removal="run /usr/lib/nvidia/sriov-manage -d {address} while no guest has one",
        ),
        Vendor(
            AMD,
            "AMD",
            names=("advanced micro devices",),
            # amdgpu takes all of AMD's (drivers/gpu/drm/amd/amdgpu, amdgpu_drv.c, pciidlist).
            # Intel's are the NPUs of its processors (drivers/accel/ivpu), NVIDIA has none
            # (kernel-open/nvidia/nv-pci-table.c).
            has_accelerators=True,
            modules=("amdgpu", "radeon"),
            drm_drivers=("amdgpu",),
            # One node for all cards, which gives no access to another guest's card: the driver
            # checks whether the device cgroup of the process permits the card's render node
            # (drivers/gpu/drm/amd/amdkfd/kfd_priv.h).
            shared_nodes={"amdgpu": ("/dev/kfd",)},
            # The kernel creates it if the driver offers it; without it the card is unknown to
            # ROCm, but still usable for graphics.
            optional_nodes=("/dev/kfd",),
            folders=("amdgpu", "rocm", "radeon"),
            # Neither amdgpu nor gim has sriov_configure, so that such a write has no effect
            # (amd/MxGPU-Virtualization, gim_shim/gim_drv.c).
            function_maker=FunctionMaker.MODULE,
            removal="unload the module gim, which made them, while no guest has one "
            "(modprobe -r gim)",
        ),
        Vendor(
            INTEL,
            "Intel",
            modules=("i915", "xe"),
            drm_drivers=("i915", "xe"),
            folders=("intel",),
        ),
    )
}


def of(vendor_id: str) -> Vendor:
    """Return the vendor with this id; of one that is not in the table only the id is known."""
    return VENDORS.get(vendor_id) or Vendor(vendor_id, "")
