# SPDX-License-Identifier: Apache-2.0
"""Script that queries NVIDIA's management library and prints one JSON object; never imported.

It runs as a process of its own because the library opens every card, because a card with an open
node cannot be given to a guest, and because a library call can hang. It imports nothing of this
package, so that it starts fast. It prints one of ::

    {"gpus": [{"address": "00000000:19:00.0", "name": "NVIDIA H200", "architecture": 9, ...}, ...]}
    {"cards": [{"address": "0000:19:00.0", "lost": false, "refused": null, ...}, ...]}
    {"error": "why there are none"}

The first is of all cards, the second of those whose addresses are the arguments: their health or,
with ``--usage``, ``--modes``, ``--modules``, ``--computing`` or ``--vgpus`` before the addresses,
what the function of that name below returns. Facts that are unknown or that a card has not are
null. Numbers of architectures, types of devices, modes and states are NVML's own.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

try:
    import pynvml  # type: ignore[import-untyped,unused-ignore]
except ImportError as missing:  # it is not on all hosts
    reason = f"nvidia-ml-py cannot be imported ({missing}); install nova-gpu[nvml]"
    print(json.dumps({"error": reason}))
    sys.exit()


def _ask(name: str, *arguments: Any) -> Any:
    """Call the function *name* of NVML; ``None`` for an error, no function, or an odd value."""
    try:
        return getattr(pynvml, name)(*arguments)
    except (pynvml.NVMLError, AttributeError, ValueError):
        return None


def _gpus() -> list[dict[str, Any]]:
    """Return the facts about all cards.

    ``nvlinks`` are pairs: the other end's address as the library spells it, null if it is not text,
    and any text for a switch that is not on PCI; and the type of the device there. ``fabric`` is
    what the card has joined through switches, ``mig`` are the instances of a card in MIG mode.
    """

    def nvlinks(handle: Any) -> list[tuple[Any, Any]]:
        links = []
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            # A link that NVML does not report does not exist or is broken; the others are queried
            # all the same.
            if _ask("nvmlDeviceGetNvLinkState", handle, link) == pynvml.NVML_FEATURE_ENABLED:
                peer = _ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
                kind = _ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
                links.append((address(peer), kind))
        return links

    gpus = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        # A lost card has no handle any more; the others are queried all the same.
        handle = _ask("nvmlDeviceGetHandleByIndex", index)
        pci = _ask("nvmlDeviceGetPciInfo", handle) if handle is not None else None
        if address(pci) is None:
            continue
        memory = _ask("nvmlDeviceGetMemoryInfo", handle)
        gpus.append(
            {
                "address": address(pci),
                "name": text(_ask("nvmlDeviceGetName", handle)),
                "architecture": _ask("nvmlDeviceGetArchitecture", handle),
                "memory": memory and memory.total,
                "compute_capability": _ask("nvmlDeviceGetCudaComputeCapability", handle),
                "uuid": text(_ask("nvmlDeviceGetUUID", handle)),
                "nvlinks": nvlinks(handle),
                "switched_links": _field(handle, "NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT"),
                "fabric": _fabric(handle),
                "mig": _mig(handle),
            }
        )
    return gpus


def _field(card: Any, name: str) -> Any:
    """Return the value, an integer, of the field *name* (``NVML_FI_DEV_...``) of the card."""
    field = getattr(pynvml, name, None)
    values = _ask("nvmlDeviceGetFieldValues", card, [field]) if field is not None else None
    value = values[0] if values and values[0].nvmlReturn == pynvml.NVML_SUCCESS else None
    return value.value.uiVal if value else None


def _fabric(card: Any) -> dict[str, Any] | None:
    # Drivers before 545 have the first version only.
    for function, structure in (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    ):
        info = getattr(pynvml, structure, lambda: None)()
        if info is not None and _ask(function, card, ctypes.byref(info)) is not None:
            return {
                "state": info.state,
                "status": info.status,
                "clique": info.cliqueId,
                "cluster": bytes(info.clusterUuid).hex(),
                "health": getattr(info, "healthMask", None),
            }
    return None


def _is_mig(card: Any) -> bool:
    mode = _ask("nvmlDeviceGetMigMode", card)
    return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _mig(card: Any) -> list[dict[str, Any]] | None:
    if not _is_mig(card):
        return None
    instances = []
    for index in range(_ask("nvmlDeviceGetMaxMigDeviceCount", card) or 0):
        # Indices may have gaps.
        instance = _ask("nvmlDeviceGetMigDeviceHandleByIndex", card, index)
        ids = [
            _ask(f"nvmlDeviceGet{kind}InstanceId", instance) if instance is not None else None
            for kind in ("Gpu", "Compute")
        ]
        if None in ids:
            continue
        attributes = _ask("nvmlDeviceGetAttributes", instance)
        instances.append(
            {
                "gpu_instance": ids[0],
                "compute_instance": ids[1],
                "name": text(_ask("nvmlDeviceGetName", instance)),
                "uuid": text(_ask("nvmlDeviceGetUUID", instance)),
                "memory_mib": attributes and attributes.memorySizeMB,
                "slices": attributes and attributes.computeInstanceSliceCount,
            }
        )
    return instances


def _health(addresses: Sequence[str]) -> list[dict[str, Any]]:
    """Return the health of the cards.

    If the library does not know a card or cannot open it, ``refused`` is the reason, unless the
    caller lacks rights.
    """
    cards = []
    for address in addresses:
        try:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(address.encode())
            pynvml.nvmlDeviceGetPciInfo(handle)
        except pynvml.NVMLError as error:
            number, reason = getattr(error, "value", None), str(error)
            lost = number == pynvml.NVML_ERROR_GPU_IS_LOST
            refused = None if number == pynvml.NVML_ERROR_NO_PERMISSION else reason
            cards.append({"address": address, "lost": lost, "refused": refused})
            continue
        cards.append({"address": address, "lost": False, "refused": None} | _memory(handle))
    return cards


def _memory(handle: Any) -> dict[str, Any]:
    kind = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    # One generation of cards retires pages, the next remaps rows.
    retired = _ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    remapped = _ask("nvmlDeviceGetRemappedRows", handle)
    # MIG instances use neither NVLink nor its fabric.
    fabric = (None if _is_mig(handle) else _fabric(handle)) or {}
    return {
        "uncorrected": _ask("nvmlDeviceGetTotalEccErrors", handle, kind, pynvml.NVML_VOLATILE_ECC),
        "retirement_pending": None if retired is None else bool(retired),
        "remapping_pending": None if remapped is None else bool(remapped[2]),
        "remapping_failed": None if remapped is None else bool(remapped[3]),
        "recovery_action": _field(handle, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"),
        "fabric_state": fabric.get("state"),
        "fabric_status": fabric.get("status"),
        "fabric_health": fabric.get("health"),
        "compute_mode": _ask("nvmlDeviceGetComputeMode", handle),
    }


def _handles(addresses: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield those *addresses* that are cards which NVML sees, each with the card's handle."""
    for address in addresses:
        if (handle := _ask("nvmlDeviceGetHandleByPciBusId", address.encode())) is not None:
            yield address, handle


def _modes(addresses: Sequence[str]) -> list[dict[str, Any]]:
    cards = []
    for address, handle in _handles(addresses):
        mig, ecc = (_ask(f"nvmlDeviceGet{kind}Mode", handle) for kind in ("Mig", "Ecc"))
        cards.append({"address": address, "mig": mig and mig[0], "ecc": ecc and ecc[0]})
    return cards


def _modules(addresses: Sequence[str]) -> list[dict[str, Any]]:
    """Return the place of each card on its board."""
    return [
        {"address": address, "module": _ask("nvmlDeviceGetModuleId", handle)}
        for address, handle in _handles(addresses)
    ]


def _computing(addresses: Sequence[str]) -> list[dict[str, Any]]:
    """Return the processes that compute on each card: pid, GPU instance and compute instance.

    The ids of the instances are 0xFFFFFFFF on a card that is not in MIG mode.
    """
    return [
        {
            "address": address,
            "processes": [
                (process.pid, process.gpuInstanceId, process.computeInstanceId)
                for process in _ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
            ],
        }
        for address, handle in _handles(addresses)
    ]


def _usage(addresses: Sequence[str]) -> list[dict[str, Any]]:
    cards = []
    for address, handle in _handles(addresses):
        rates = _ask("nvmlDeviceGetUtilizationRates", handle)
        memory = _memory_info(handle)
        reserved = getattr(memory, "reserved", 0)
        cards.append(
            {
                "address": address,
                "utilization": rates and rates.gpu,
                # The guides of different releases disagree whether NVML's own "used" includes the
                # reserved memory.
                "memory_used": memory and memory.total - memory.free - reserved,
                "memory_total": memory and memory.total,
            }
        )
    return cards


def _memory_info(card: Any) -> Any:
    """Return NVML's structure about the card's memory, ``None`` if NVML does not report it.

    It has the field ``reserved``, for the memory that the driver reserves, if the driver reports
    that: half a GiB on an H100. NVML's guide for driver 470 has no such field, that for 525 has.
    """
    second = getattr(pynvml, "nvmlMemory_v2", None)
    memory = _ask("nvmlDeviceGetMemoryInfo", card, second) if second else None
    return memory or _ask("nvmlDeviceGetMemoryInfo", card)


# INVALID_GPU_INSTANCE_PROFILE_ID of nvml.h: the type shares its card by time
_NO_PROFILE = 0xFFFFFFFF
# More than any card has of one profile
_MOST_INSTANCES = 64


def _vgpus(addresses: Sequence[str]) -> list[dict[str, Any]]:
    """Return the vGPU types that NVIDIA's vGPU driver supports on the cards.

    ``most`` is the number of vGPUs of a type on an otherwise empty card, which is smaller where its
    vGPUs may be of several sizes (``nvidia-smi vgpu -shm 1``), ``per_instance`` that on
    one GPU instance of the ``profile`` that the type needs, ``per_guest`` that which one guest can
    have. ``instances`` is the number of GPU instances by profile, for a card in MIG mode; counting
    them takes root.
    """
    cards = []
    for address, handle in _handles(addresses):
        if (ids := _ask("nvmlDeviceGetSupportedVgpus", handle)) is None:
            continue
        is_mixed = bool(_ask("nvmlDeviceGetVgpuHeterogeneousMode", handle))
        types = [_vgpu_type(handle, number, is_mixed=is_mixed) for number in ids]
        instances = None
        if _is_mig(handle):
            profiles = {vgpu_type["profile"] for vgpu_type in types} - {None}
            instances = {str(number): _instances(handle, number) for number in sorted(profiles)}
        cards.append({"address": address, "types": types, "instances": instances})
    return cards


def _vgpu_type(card: Any, number: int, *, is_mixed: bool) -> dict[str, Any]:
    most = _ask("nvmlVgpuTypeGetMaxInstances", card, number)
    places = _ask("nvmlDeviceGetVgpuTypeSupportedPlacements", card, number) if is_mixed else None
    profile = _ask("nvmlVgpuTypeGetGpuInstanceProfileId", number)
    return {
        "id": number,
        "name": text(_ask("nvmlVgpuTypeGetName", number)),
        "memory": _ask("nvmlVgpuTypeGetFramebufferSize", number),
        "heads": _ask("nvmlVgpuTypeGetNumDisplayHeads", number),
        "resolution": _ask("nvmlVgpuTypeGetResolution", number),
        "most": places.count if places else most,
        "places": places.placementIds[: places.count] if places else [],
        "place_size": places.placementSize if places else None,
        "profile": None if profile == _NO_PROFILE else profile,
        "per_instance": _ask("nvmlVgpuTypeGetMaxInstancesPerGpuInstance", number),
        "per_guest": _ask("nvmlVgpuTypeGetMaxInstancesPerVm", number),
    }


def _instances(card: Any, profile: int) -> int | None:
    count = ctypes.c_uint(_MOST_INSTANCES)
    handles = (ctypes.c_void_p * _MOST_INSTANCES)()
    answer = _ask("nvmlDeviceGetGpuInstances", card, profile, handles, ctypes.byref(count))
    return None if answer is None else count.value


def text(value: Any) -> Any:
    """Return *value* as text, as old nvidia-ml-py returns bytes; ``None`` if they are no text."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except ValueError:
        return None


def address(pci: Any) -> Any:
    """Return the PCI address in NVML's structure *pci* as NVML writes it, ``None`` without one."""
    try:
        return None if pci is None else text(pci.busId)
    except ValueError:  # the binding makes text of it, which it may not be
        return None


_QUERIES = {
    "--usage": _usage,
    "--modes": _modes,
    "--modules": _modules,
    "--computing": _computing,
    "--vgpus": _vgpus,
}


def probe(addresses: Sequence[str]) -> dict[str, Any]:
    try:
        # Without attaching (NVML_INIT_FLAG_NO_ATTACH) the library has no card, not even by its
        # address.
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": f"nvmlInit: {error}"}
    try:
        if query := _QUERIES.get(addresses[0] if addresses else ""):
            return {"cards": query(addresses[1:])}
        return {"cards": _health(addresses)} if addresses else {"gpus": _gpus()}
    except pynvml.NVMLError as error:
        return {"error": str(error)}
    finally:
        pynvml.nvmlShutdown()


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1:])))
