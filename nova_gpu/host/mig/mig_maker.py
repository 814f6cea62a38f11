# SPDX-License-Identifier: Apache-2.0
"""Script that divides one card into MIG instances.

It runs as a process of its own, like every call that may hang in the driver
(:mod:`nova_gpu.host.child_process`): a thread of the privsep daemon that hangs cannot be ended, and
NVML keeps the card open in its process until nvmlShutdown, which a hanging call never reaches. It
imports nvidia-ml-py and the standard library only. Its arguments are a card's PCI address, a
profile (``1g.18gb``), or nothing to turn MIG mode on only, and the number of attempts to do that.
With the ids of GPU instances behind these, their compute instances are made again and nothing else.
It prints one of ::

    {"made": 7}
    {"error": "why there are none"}

Source: NVIDIA's MIG user guide; nvml.h on nvmlDeviceSetMigMode and on GPU instances.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

try:
    import pynvml  # type: ignore[import-untyped,unused-ignore]
except ImportError as missing:  # it is not on all hosts
    print(json.dumps({"error": f"nvidia-ml-py cannot be imported: {missing}"}))
    sys.exit()

_TRY_AGAIN_S = 1.0
# More than a card has of GPU instances, or one of them of compute instances
_MOST_INSTANCES = 64
_NOT_NOW = "MIG mode cannot be turned on now: a process uses the card, or it must be reset for that"


class _Refused(Exception):
    """The reason why a card was not divided."""


def _make(address: str, profile: str, tries: int) -> int:
    """Divide the card into as many instances of *profile* as it has room for; return how many.

    GPU instances of the profile that exist count, and get the compute instance that they lack:
    after a run that was killed, for example. After a failure remove what was created, and turn MIG
    mode off if it was off before.
    """
    card = pynvml.nvmlDeviceGetHandleByPciBusId(address.encode())
    undo: list[Callable[[], object]] = []
    try:
        if pynvml.nvmlDeviceGetMigMode(card)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            card = _turn_on(address, tries)
            undo.append(lambda: pynvml.nvmlDeviceSetMigMode(card, pynvml.NVML_DEVICE_MIG_DISABLE))
        if not profile:
            return 0
        profiles = _profiles(card)
        if profile not in profiles:
            raise _Refused(f"it has no profile {profile}; it has {', '.join(profiles) or 'none'}")
        instances = _instances(card, profiles[profile])
        lacking = [instance for instance in instances if not _has_compute(instance)]
        room = int(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(card, profiles[profile]))
        if room < 1 and not instances:
            raise _Refused(f"it has no room for an instance of {profile}")
        for number in range(len(lacking) + room):
            if number < len(lacking):
                instance = lacking[number]
            else:
                instance = pynvml.nvmlDeviceCreateGpuInstance(card, profiles[profile])
                undo.append(functools.partial(pynvml.nvmlGpuInstanceDestroy, instance))
            compute = _make_compute(instance)
            undo.append(functools.partial(pynvml.nvmlComputeInstanceDestroy, compute))
    except BaseException:
        for step in reversed(undo):
            step()
        raise
    return len(instances) + room


def _restore(address: str, numbers: list[int]) -> int:
    """Make a compute instance in each of these GPU instances that has none; return how many."""
    card = pynvml.nvmlDeviceGetHandleByPciBusId(address.encode())
    instances = [pynvml.nvmlDeviceGetGpuInstanceById(card, number) for number in numbers]
    return len([_make_compute(i) for i in instances if not _has_compute(i)])


def _make_compute(instance: Any) -> Any:
    """Make a compute instance that has all of the GPU instance; return its handle."""
    whole = max(_compute_profiles(instance))[1]
    return pynvml.nvmlGpuInstanceCreateComputeInstance(instance, whole)


def _instances(card: Any, profile: int) -> list[Any]:
    """Return NVML's handles of the card's GPU instances of the profile."""
    handles = (pynvml.c_nvmlGpuInstance_t * _MOST_INSTANCES)()
    count = ctypes.c_uint(_MOST_INSTANCES)
    pynvml.nvmlDeviceGetGpuInstances(card, profile, handles, ctypes.byref(count))
    return list(handles[: count.value])


def _has_compute(instance: Any) -> bool:
    """Return whether the GPU instance has a compute instance of any profile."""
    handles = (pynvml.c_nvmlComputeInstance_t * _MOST_INSTANCES)()
    for _, profile in _compute_profiles(instance):
        count = ctypes.c_uint(_MOST_INSTANCES)
        pynvml.nvmlGpuInstanceGetComputeInstances(instance, profile, handles, ctypes.byref(count))
        if count.value:
            return True
    return False


def _turn_on(address: str, tries: int) -> Any:
    """Turn MIG mode on and return the card's new NVML handle.

    While a process has the card open, MIG mode stays off; repeat up to *tries* times.
    """
    for left in range(tries - 1, -1, -1):
        card = pynvml.nvmlDeviceGetHandleByPciBusId(address.encode())
        pynvml.nvmlDeviceSetMigMode(card, pynvml.NVML_DEVICE_MIG_ENABLE)
        # It may have unbound the card and bound it anew (nvml.h), which ends a handle.
        card = pynvml.nvmlDeviceGetHandleByPciBusId(address.encode())
        if pynvml.nvmlDeviceGetMigMode(card)[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
            return card
        pynvml.nvmlDeviceSetMigMode(card, pynvml.NVML_DEVICE_MIG_DISABLE)
        if left:
            time.sleep(_TRY_AGAIN_S)
    raise _Refused(_NOT_NOW)


def _profiles(card: Any) -> dict[str, int]:
    """Return NVML's ids of the GPU instance profiles that the card supports, by name."""
    profiles = {}
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card, number)
        except pynvml.NVMLError:
            continue  # which the card has not
        name = info.name.decode() if isinstance(info.name, bytes) else info.name
        profiles[name.removeprefix("MIG ")] = info.id
    return profiles


def _compute_profiles(instance: Any) -> list[tuple[int, int]]:
    """Return the slices of each compute instance profile of *instance*, and NVML's id of it."""
    sizes = []
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, number, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
        except pynvml.NVMLError:
            continue
        sizes.append((info.sliceCount, info.id))
    if not sizes:
        raise _Refused("its GPU instances have no compute profile")
    return sizes


def main(address: str, profile: str, tries: str, *numbers: str) -> dict[str, Any]:
    try:
        pynvml.nvmlInit()
        try:
            if numbers:
                return {"made": _restore(address, list(map(int, numbers)))}
            return {"made": _make(address, profile, int(tries))}
        finally:
            pynvml.nvmlShutdown()
    except (_Refused, pynvml.NVMLError) as error:
        return {"error": str(error)}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
