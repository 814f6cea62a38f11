# SPDX-License-Identifier: Apache-2.0
"""Creation and removal of the vGPU at a slot, which is a place for one vGPU on a PCI function.

The vGPU is a mediated device, or a virtual function that NVIDIA's driver has given a vGPU type. A
virtual function that needs no type is only checked. Both operations can be repeated without effect.
Sources as in :mod:`nova_gpu.host.vgpu.mdev` and :mod:`nova_gpu.host.vgpu.sriov`.
"""

from __future__ import annotations

from nova_gpu.core import exception
from nova_gpu.core.vgpu.vgpu import Slot, is_function_type
from nova_gpu.host import child_process
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import mdev, sriov, virtual_functions

_SEE_LOG = "see the kernel's log about the card"
_NO_TYPE = "0"
_PARAMS = "vgpu_params"
# The card's state, and no fault of the function
NOT_LISTED = "its driver does not list the type: the card has no room for one more vGPU of it"
_ROOM = "see which vGPUs it has, and in MIG mode its GPU instances (nvidia-smi mig -lgi)"


def make(slot: Slot, uuid: str, roots: Roots, timeout_s: float) -> None:
    """Create the vGPU at *slot*, unless it exists.

    A virtual function that has the slot's type already is left as it is: the caller must know that
    no other instance uses it.

    :param uuid: the uuid of the mediated device, if the function creates mediated devices
    :raises DeviceUnavailable: if the vGPU cannot be created now
    """

    def refused(reason: str, remedy: str = _SEE_LOG) -> exception.DeviceUnavailable:
        return exception.DeviceUnavailable(str(slot.parent), f"{slot}: {reason}", remedy)

    device = sysfs.device(slot.parent, roots)
    try:
        if is_function_type(slot.type_id):
            if reason := virtual_functions.obstacle(slot.parent, roots):
                raise refused(reason, "then start the instance again")
            return
        present = mdev.devices(roots).get(uuid)
        profiles = sriov.profiles(device)
        if present is not None:
            if present != mdev.MediatedDevice(slot.parent, slot.type_id):
                where = f"{present.parent or 'another device'} ({present.type_id})"
                reason = f"the mediated device {uuid} exists already, on {where}"
                raise refused(reason, "remove that device, if no guest has it")
            return
        if profiles is None:
            if slot.type_id not in mdev.types(device):
                raise refused("the function has no such vGPU type now")
            path = f"{device}/mdev_supported_types/{slot.type_id}/create"
            sysfs.write(path, uuid, timeout_s)
            if uuid not in mdev.devices(roots):
                raise refused("its driver reported success and created no device")
            return
        if slot.type_id in profiles.parent.made:
            return
        if profiles.parent.made:
            reason = f"the function has the type {next(iter(profiles.parent.made))}"
            raise refused(reason, "remove that type, if no guest has it")
        if slot.type_id not in profiles.parent.available:
            raise refused(NOT_LISTED, _ROOM)
        sysfs.write(f"{device}/nvidia/current_vgpu_type", _number(slot.type_id), timeout_s)
        if not _has_type(device, slot):
            raise refused("its driver reported success and gave the function no type")
    except (OSError, ValueError, child_process.Failed) as error:
        raise refused(f"it was not created: {error}") from error


def remove(slot: Slot, uuid: str, roots: Roots, timeout_s: float) -> None:
    """Remove the vGPU at *slot*: the mediated device *uuid*, or the virtual function's type.

    Its guest must have ended, because the kernel waits until no process has the vGPU open. Do
    nothing if the vGPU does not exist.

    :raises NotClean: if the vGPU still exists, or it is unknown whether it does
    """

    def refused(reason: str) -> exception.NotClean:
        return exception.NotClean(str(slot.parent), f"{slot}: {reason}", _SEE_LOG)

    device = sysfs.device(slot.parent, roots)
    try:
        present = mdev.devices(roots).get(uuid)
        profiles = sriov.profiles(device)
        if present == mdev.MediatedDevice(slot.parent, slot.type_id):
            sysfs.write(f"{roots.sysfs}/bus/mdev/devices/{uuid}/remove", "1", timeout_s)
        elif present is None and profiles is not None and slot.type_id in profiles.parent.made:
            sysfs.write(f"{device}/nvidia/current_vgpu_type", _NO_TYPE, timeout_s)
            if _has_type(device, slot):
                raise refused("its driver reported success and left the function its type")
    except (OSError, ValueError, child_process.Failed) as error:
        raise refused(f"its vGPU was not removed: {error}") from error


def params(slot: Slot, uuid: str, roots: Roots) -> str:
    """Return the parameters of the vGPU at *slot* or mediated device *uuid*, empty without any."""
    try:
        return sysfs.attribute(_params_folder(slot, uuid, roots), _PARAMS)
    except OSError:
        return ""


def set_params(slot: Slot, uuid: str, text: str, roots: Roots, timeout_s: float) -> None:
    """Give the vGPU at *slot*, which no guest has open, the parameters *text* instead of its own.

    Source: vgpu_params_store in nvidia-vgpu-vfio.c of NVIDIA's driver. It drops the last character,
    for which a line feed is written, and refuses the text while a process has the vGPU open.

    :raises DeviceUnavailable: if it has other parameters afterwards
    """
    folder = _params_folder(slot, uuid, roots)
    try:
        sysfs.write(f"{folder}/{_PARAMS}", f"{text}\n", timeout_s)
        reason = "its driver took others" if sysfs.attribute(folder, _PARAMS) != text else None
    except (OSError, child_process.Failed) as error:
        reason = str(error)
    if reason:
        what = f"{slot}: the parameters {text or 'of none'} were not set: {reason}"
        remedy = f"take them out of the flavor, or {_SEE_LOG}" if text else _SEE_LOG
        raise exception.DeviceUnavailable(str(slot.parent), what, remedy)


def _params_folder(slot: Slot, uuid: str, roots: Roots) -> str:
    is_typed = sriov.profiles(sysfs.device(slot.parent, roots)) is not None
    device = (
        sysfs.device(slot.parent, roots) if is_typed else f"{roots.sysfs}/bus/mdev/devices/{uuid}"
    )
    return f"{device}/nvidia"


def _has_type(device: str, slot: Slot) -> bool:
    profiles = sriov.profiles(device)
    return profiles is not None and slot.type_id in profiles.parent.made


def _number(type_id: str) -> str:
    """Return the number in the id of an NVIDIA vGPU type: ``nvidia-35`` becomes ``35``."""
    vendor, _, number = type_id.partition("-")
    if vendor != "nvidia" or not number.isdecimal():
        raise ValueError(f"{type_id} is not a type of NVIDIA's driver")
    return number
