# SPDX-License-Identifier: Apache-2.0
"""The parts that an AMD card is split into (CPX, DPX ..., NPS4), each of which has a render node.

The first part has that of the card's PCI function, the others have theirs at platform devices, of
which KFD tells whose they are. Who has the first alone computes on a part of the card, and with
NPS2 or NPS4 has a part of its memory.

Source: the kernel's drivers/gpu/drm/amd, amdgpu/amdgpu_gfx.c (current_compute_partition),
amdxcp/amdgpu_xcp_drv.c (``amdgpu_xcp_%d``, before Linux 6.10 ``amdgpu_xcp.%d``) and amdkfd.
"""

from __future__ import annotations

from nova_gpu.core import model
from nova_gpu.host.pci import kfd, sysfs
from nova_gpu.host.roots import Roots

_WHOLE = "SPX"
# In how many parts a card is; of CPX that depends on the card, and is several.
_PARTS = {"DPX": 2, "TPX": 3, "QPX": 4}


def drm_names(address: model.PciAddress, roots: Roots) -> tuple[str, ...]:
    """The names of the card's nodes in /dev/dri beside those of its PCI function"""
    if not _mode(address, roots):
        return ()
    minors = _minors(address, roots)
    platform = f"{roots.sysfs}/devices/platform"
    found: set[str] = set()
    for device in sysfs.names(platform):
        if device.startswith("amdgpu_xcp"):
            names = sysfs.names(f"{platform}/{device}/drm")
            found.update(names if not minors.isdisjoint(names) else ())
    return tuple(sorted(found))


def obstacle(address: model.PciAddress, roots: Roots) -> str | None:
    """Why a guest would not get all of the card, and what to do; ``None`` where it would."""
    mode = _mode(address, roots)
    if not mode:
        return None
    there = _minors(address, roots).intersection(
        [*drm_names(address, roots), *sysfs.names(f"{sysfs.device(address, roots)}/drm")]
    )
    wanted = _PARTS.get(mode)
    if len(there) == wanted or (wanted is None and len(there) > 1):
        return None
    return (
        f"it is split into parts ({mode}), and of {len(there)} of them KFD tells the render node; "
        "see the kernel's log about it, or make it whole (amd-smi set --compute-partition SPX)"
    )


def _mode(address: model.PciAddress, roots: Roots) -> str | None:
    """How the card is split, ``None`` of a whole one; not known while it is reset"""
    try:
        device = sysfs.device(address, roots)
        mode = sysfs.attribute(device, "current_compute_partition").upper()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"unknown: {error.strerror}"
    return None if mode == _WHOLE else mode


def _minors(address: model.PciAddress, roots: Roots) -> frozenset[str]:
    return frozenset(
        f"renderD{node.render_minor}"
        for node in kfd.nodes(roots.sysfs).values()
        if node.address == address and node.render_minor is not None
    )
