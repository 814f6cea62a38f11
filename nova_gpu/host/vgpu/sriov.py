# SPDX-License-Identifier: Apache-2.0
"""SR-IOV: a card's virtual functions, and the vGPU types that NVIDIA's driver gives them.

Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci; NVIDIA's vGPU user guide on
vendor-specific VFIO, and nvidia-vgpu-vfio of its driver, which writes ``current_vgpu_type`` and
``creatable_vgpu_types``. ``device`` is the sysfs folder of a card, or of a virtual function.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import os
import re
from collections.abc import Mapping

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu import vgpu
from nova_gpu.host.pci import sysfs

_LINK = re.compile("virtfn[0-9]{1,5}")

# "ID    : vGPU Name", then a line such as "1148  : NVIDIA L40S-2Q" for each type.
_LINE = re.compile(r"([0-9]{1,9})\s*:\s*(\S.*)")
# NVIDIA's names end in the series after the frame buffer in GB, 0 for half of one, and have the
# slices of the GPU instance before it where there is one: L40S-48Q, M60-0Q, H200X-1-18C. Behind the
# series may be the number of its heads: M10-2B4.
_NAME = re.compile(r".*?(?:-([1-8]))?-([0-9]{1,4})[A-Z]+4?")
_MIB = 1024
# NVIDIA's driver shows -1, its unsigned form or NVML_INVALID_VGPU_PLACEMENT_ID of nvml.h for none.
_NONE = (0xFFFF, 0xFFFFFFFF)

# How long a function of Intel's card computes before the next one's turn, and how long after that
# its work is ended: Intel's for four functions of a Flex 170, and its driver's own later
# (intel-gpu/xekmd-backports#501)
SCHEDULE = {"exec_quantum_ms": 16, "preempt_timeout_us": 32000}


@dataclasses.dataclass(frozen=True, slots=True)
class Profiles:
    """The vGPU type that a virtual function has, and those that NVIDIA's driver lists for it.

    ``parent`` has the present type in ``made``. If there is none, it has the types that the
    function can get in ``available``; a function keeps its type until that is removed. ``names``
    are the names of the listed types by id.
    """

    parent: vgpu.Parent
    names: Mapping[str, str]


def most(device: str) -> int:
    """Return how many virtual functions the card with the sysfs folder *device* supports."""
    return max(sysfs.decimal(device, "sriov_totalvfs") or 0, 0)


def virtual_functions(device: str) -> Mapping[str, PciAddress]:
    """Return the enabled virtual functions of a card in order, by the names of their sysfs folders.

    The name is the address as text, which would take long to format for hundreds of functions. The
    source is the kernel's links ``virtfn``, because a process that reads ``sriov_numvfs`` can hang
    in a driver.

    :raises OSError: if the kernel does not report them
    """
    links = [name for name in os.listdir(device) if _LINK.fullmatch(name)]
    functions = {}
    for link in sorted(sorted(links), key=len):  # virtfn2 before virtfn10
        name = sysfs.link(device, link) or ""
        try:
            functions[name] = _address(name)
        except exception.InvalidPciAddress:
            continue  # gone meanwhile
    return functions


def _profile_folders(device: str, number: int) -> list[str]:
    """Return the folders with a function's share of Intel's card: xe's, and those of i915 by tile.

    Sources: the kernel's Documentation/ABI/testing/sysfs-driver-intel-xe-sriov; Intel's i915 for
    data centers, as intel/xpumanager reads it (core/src/vgpu/vgpu_manager.cpp).
    """
    tiles = sorted(glob.glob(f"{glob.escape(device)}/drm/card*/*iov/vf{number}/gt*"))
    return [f"{device}/sriov_admin/vf{number}/profile", *tiles]


def memory_mib(device: str, number: int) -> int | None:
    """Return the memory of a virtual function of Intel's card, which the driver has given it.

    Return ``None`` if it is unknown, as with xe before Linux 7.0. The parameters are those of
    :func:`_profile_folders`.

    :raises OSError, ValueError: if a file exists and cannot be read: the card would seem divided
        otherwise, and its types would have other names
    """
    quota = 0
    for folder in _profile_folders(device, number):
        for name in ("vram_quota", "lmem_quota"):
            with contextlib.suppress(FileNotFoundError):
                quota += int(sysfs.attribute(folder, name))
    return quota // 2**20 or None


def unlimited(device: str, number: int) -> list[tuple[str, int]]:
    """Return the attributes by which a function of Intel's card has no limit, with a default.

    0 is none: the function's guest can keep the card from the others for as long as it likes. The
    parameters are those of :func:`_profile_folders`.
    """
    return [
        (f"{folder}/{name}", default)
        for folder in _profile_folders(device, number)
        for name, default in SCHEDULE.items()
        if sysfs.decimal(folder, name) == 0
    ]


def shows_limits(device: str) -> bool:
    """Return whether Intel's driver shows the functions' limits of time (xe since Linux 6.19)."""
    folders = _profile_folders(device, 1)
    return any(os.path.exists(f"{folder}/{name}") for folder in folders for name in SCHEDULE)


def profiles(device: str) -> Profiles | None:
    """Return the vGPU types of a virtual function, ``None`` if it has no file of NVIDIA's driver.

    :raises OSError, ValueError: if the files exist but cannot be read or parsed
    """
    folder = f"{device}/nvidia"
    try:
        current = sysfs.attribute(folder, "current_vgpu_type")
        creatable = sysfs.attribute(folder, "creatable_vgpu_types")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return _profiles(current, creatable)
    except ValueError as error:
        raise ValueError(f"{folder}/{error}") from None


def where(device: str) -> tuple[int | None, int | None]:
    """Return where the vGPU of a virtual function is: its GPU instance, and its place on the card.

    Each is ``None`` if there is none, or NVIDIA's driver does not tell it (yet).
    """
    numbers = (sysfs.decimal(f"{device}/nvidia", f"{n}_id") for n in ("gpu_instance", "placement"))
    instance, place = (None if n is None or n < 0 or n in _NONE else n for n in numbers)
    return instance, place


# Hundreds of functions have the same texts. The cached result must not be changed.


@functools.lru_cache(maxsize=4096)
def _address(text: str) -> PciAddress:
    return PciAddress.parse(text)


@functools.lru_cache(maxsize=64)
def _profiles(current: str, creatable: str) -> Profiles:
    """Parse the texts of ``current_vgpu_type`` and ``creatable_vgpu_types``."""
    if not re.fullmatch("[0-9]{1,9}", current):
        raise ValueError(f"current_vgpu_type has {current!r} for the id of a vGPU type")
    matches = filter(None, map(_LINE.fullmatch, map(str.strip, creatable.splitlines())))
    # As the ids of the types of mediated devices
    names = {f"nvidia-{int(match[1])}": match[2] for match in matches}
    if int(current):
        return Profiles(vgpu.Parent(vgpu.VGPUKind.TYPED, {}, {f"nvidia-{int(current)}": 1}), names)
    return Profiles(vgpu.Parent(vgpu.VGPUKind.TYPED, dict.fromkeys(names, 1), {}), names)


def named(type_id: str, name: str) -> vgpu.VGPUType:
    """Return an NVIDIA vGPU type with its memory and slices as its name tells them, L40S-48Q."""
    match = _NAME.fullmatch(name)
    if match is None:
        return vgpu.VGPUType(type_id, name)
    return vgpu.VGPUType(
        type_id,
        name,
        memory_mib=int(match[2]) * _MIB or _MIB // 2,
        slices=int(match[1]) if match[1] else None,
    )
