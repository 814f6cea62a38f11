# SPDX-License-Identifier: Apache-2.0
"""Mediated devices: the types that a PCI function can create, and the devices that exist.

Source: the kernel's Documentation/ABI/testing/sysfs-bus-vfio-mdev and drivers/vfio/mdev. Functions
raise OSError if the kernel does not report what they read. ``device`` is a function's sysfs folder.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu import vgpu
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

_TYPES = "mdev_supported_types"
# The device_api of types for PCI guests; the others are of s390's channels and crypto cards.
_DEVICE_API = "vfio-pci"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

# NVIDIA, in one line: "num_heads=4, frl_config=60, framebuffer=2048M, max_resolution=7680x4320,
# max_instance=12". Intel (drivers/gpu/drm/i915/gvt/kvmgt.c), one to a line: "low_gm_size: 128MB",
# "high_gm_size: 512MB", "fence: 4", "resolution: 1920x1200", "weight: 4"; low and high together are
# what a guest can map. The kernel's samples: "virtual display, 16 MB video memory" (mbochs),
# "virtual display, 1024x768 framebuffer" (mdpy).
_FIELD = re.compile(r"(\w+)\s*[=:]\s*([^,\n]+)")
_MBOCHS = re.compile(r"virtual display, ([0-9]{1,9}) MB video memory")
_MDPY = re.compile(r"virtual display, ([0-9]{1,9}x[0-9]{1,9}) framebuffer")


@dataclasses.dataclass(frozen=True, slots=True)
class MediatedDevice:
    """A mediated device, of the vGPU type ``type_id`` (``nvidia-35``).

    ``parent`` is the PCI function that has created it, ``None`` for a device on another bus.
    """

    parent: PciAddress | None
    type_id: str


def types(device: str) -> tuple[str, ...]:
    """Return the ids of the types of mediated devices that a function can create, sorted.

    They include types for other buses than PCI, for which :func:`facts` returns ``None``.
    """
    try:
        names = os.listdir(f"{device}/{_TYPES}")
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(sorted(filter(vgpu.is_type_id, names)))


def registration(device: str) -> int | None:
    """Return a number that changes when a driver registers types anew, ``None`` without types."""
    try:
        return os.stat(f"{device}/{_TYPES}").st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


def available(device: str, type_id: str) -> int:
    """Return how many more vGPUs of the type the function can create, 0 if unknown.

    :raises ValueError: if that is more than :data:`nova_gpu.core.vgpu.vgpu.MAX_PER_CARD`
    """
    folder = f"{device}/{_TYPES}/{type_id}"
    number = max(sysfs.decimal(folder, "available_instances") or 0, 0)
    if number > vgpu.MAX_PER_CARD:
        raise ValueError(f"{folder}/available_instances says more than {vgpu.MAX_PER_CARD}")
    return number


def facts(device: str, type_id: str) -> vgpu.VGPUType | None:
    """Return the driver's facts about a type, ``None`` unless it is a PCI device in a guest."""
    folder = f"{device}/{_TYPES}/{type_id}"
    if _text(folder, "device_api") != _DEVICE_API:
        return None
    name = _text(folder, "name") or None
    return described(vgpu.VGPUType(type_id, name), _text(folder, "description"))


def described(bare: vgpu.VGPUType, description: str) -> vgpu.VGPUType:
    """Return *bare* with the facts in *description*, the driver's text about the type.

    The notations of NVIDIA's, Intel's and the kernel's sample drivers are known; other texts and
    facts are ignored.
    """
    fields = {match[1]: match[2].strip() for match in _FIELD.finditer(description)}
    mbochs, mdpy = _MBOCHS.fullmatch(description), _MDPY.fullmatch(description)
    low, high = (_number(fields.get(f"{part}_gm_size"), "MB") for part in ("low", "high"))
    return dataclasses.replace(
        bare,
        memory_mib=(
            _number(fields.get("framebuffer"), "M")
            or (low + high if low and high else None)
            or _number(mbochs[1] if mbochs else None)
        ),
        heads=_number(fields.get("num_heads")),
        resolution=_resolution(
            fields.get("max_resolution") or fields.get("resolution") or (mdpy[1] if mdpy else None)
        ),
        per_card=_number(fields.get("max_instance")),
    )


def devices(roots: Roots) -> Mapping[str, MediatedDevice]:
    """Return all mediated devices of the host by uuid, whether or not Nova has created them."""
    folder = f"{roots.sysfs}/bus/mdev/devices"
    try:
        uuids = os.listdir(folder)
    except FileNotFoundError:
        return {}  # the mdev module is not loaded
    devs = {uuid: _device(folder, uuid) for uuid in uuids if _UUID.fullmatch(uuid)}
    return {uuid.lower(): device for uuid, device in devs.items() if device is not None}


def is_there(uuid: str, roots: Roots) -> bool:
    """Return whether a mediated device with this *uuid* exists."""
    try:
        os.lstat(f"{roots.sysfs}/bus/mdev/devices/{uuid}")
    except FileNotFoundError:
        return False
    return True


def _device(folder: str, uuid: str) -> MediatedDevice | None:
    try:
        above = os.readlink(f"{folder}/{uuid}").split("/")[-2:-1]
    except FileNotFoundError:
        return None
    type_id = sysfs.link(f"{folder}/{uuid}", "mdev_type")
    if type_id is None:
        return None  # removed meanwhile
    try:
        return MediatedDevice(PciAddress.parse("".join(above)), type_id)
    except exception.InvalidPciAddress:
        return MediatedDevice(None, type_id)


def _text(folder: str, name: str) -> str:
    try:
        return sysfs.attribute(folder, name)
    except OSError:
        return ""


def _number(text: str | None, unit: str = "") -> int | None:
    match = re.fullmatch(r"([0-9]{1,9})\s*" + unit, text or "")
    return int(match[1]) or None if match else None


def _resolution(text: str | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", text or "")
    return (int(match[1]), int(match[2])) if match else None
