# SPDX-License-Identifier: Apache-2.0
"""A script that calls Fabric Manager's library and prints one JSON object; it is never imported.

It is a separate process, because a call waits for another service, and forever if that hangs. It
only uses the standard library, so that it starts fast. Its arguments are the address of Fabric
Manager, the longest time to connect in milliseconds, and the operation with its arguments::

    127.0.0.1:6666 5000 partitions
    {"partitions": [{"id": 1, "active": false,
                     "gpus": [{"module": 1, "links": 18, "most_links": 18}, ...]}, ...],
     "unsupported": [{"id": 0, "modules": [1, 2, ...]}],
     "failed": [{"address": "00000000:05:00.0", "is_switch": true, "ports": [3, 4]}]}

    127.0.0.1 5000 activate 1 [0000:86:00.4 ...]      (with the virtual functions of its cards)
    127.0.0.1 5000 deactivate 1
    127.0.0.1 5000 set 1 9                 (all active partitions, after Fabric Manager's restart)
    {"done": true}

    {"error": "fmConnect", "code": -9}, {"error": "why the library cannot be used"}

``unsupported`` and ``failed`` are null if Fabric Manager does not report them. Only NVML knows the
card of each module: from H100 on Fabric Manager leaves the addresses of cards empty.

Names, numbers and structures are those of nv_fm_agent.h and nv_fm_types.h, as in NVIDIA/go-nvfm.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

SUCCESS = 0
_INET, _UNIX = 1, 2  # NV_FM_API_ADDR_TYPE_*
_MAX_GPUS, _MAX_SWITCHES, _MAX_PARTITIONS, _MAX_PORTS = 16, 12, 64, 64
_uint = ctypes.c_uint


class _ConnectParams(ctypes.Structure):
    """The library's fmConnectParams_v2: where to connect, and how long to wait."""

    _fields_ = (
        ("version", _uint),
        ("addressInfo", ctypes.c_char * 256),
        ("timeoutMs", _uint),
        ("addressIsUnixSocket", _uint),
        ("addressType", _uint),
    )


class _PciDevice(ctypes.Structure):
    """The library's fmPciDevice_t: a PCI address."""

    _fields_ = (("domain", _uint), ("bus", _uint), ("device", _uint), ("function", _uint))


class _Gpu(ctypes.Structure):
    """The library's fmFabricPartitionGpuInfo_t: a card of a partition."""

    _fields_ = (
        ("physicalId", _uint),
        ("uuid", ctypes.c_char * 80),
        ("pciBusId", ctypes.c_char * 32),
        ("numNvLinksAvailable", _uint),
        ("maxNumNvLinks", _uint),
        ("nvlinkLineRateMBps", _uint),
    )


class _Partition(ctypes.Structure):
    """The library's fmFabricPartitionInfo_t: a partition."""

    _fields_ = (
        ("partitionId", _uint),
        ("isActive", _uint),
        ("numGpus", _uint),
        ("gpuInfo", _Gpu * _MAX_GPUS),
    )


class _Partitions(ctypes.Structure):
    """The library's fmFabricPartitionList_v2: all partitions. Its version field is 1."""

    _fields_ = (
        ("version", _uint),
        ("numPartitions", _uint),
        ("maxNumPartitions", _uint),
        ("partitionInfo", _Partition * _MAX_PARTITIONS),
    )


class _Activated(ctypes.Structure):
    """The library's fmActivatedFabricPartitionList_v1: the numbers of active partitions."""

    _fields_ = (
        ("version", _uint),
        ("numPartitions", _uint),
        ("partitionIds", _uint * _MAX_PARTITIONS),
    )


class _FailedDevice(ctypes.Structure):
    """The library's fmNvlinkFailedDeviceInfo_t: a card or switch with failed NVLinks."""

    _fields_ = (
        ("uuid", ctypes.c_char * 80),
        ("pciBusId", ctypes.c_char * 32),
        ("numPorts", _uint),
        ("portNum", _uint * _MAX_PORTS),
    )


class _FailedDevices(ctypes.Structure):
    """The library's fmNvlinkFailedDevices_v1: all cards and switches with failed NVLinks."""

    _fields_ = (
        ("version", _uint),
        ("numGpus", _uint),
        ("numSwitches", _uint),
        ("gpuInfo", _FailedDevice * _MAX_GPUS),
        ("switchInfo", _FailedDevice * _MAX_SWITCHES),
    )


class _Unsupported(ctypes.Structure):
    """The library's fmUnsupportedFabricPartitionInfo_t: a partition that cannot be offered."""

    _fields_ = (("partitionId", _uint), ("numGpus", _uint), ("gpuPhysicalIds", _uint * _MAX_GPUS))


class _UnsupportedPartitions(ctypes.Structure):
    """The library's fmUnsupportedFabricPartitionList_v1: all partitions that cannot be offered."""

    _fields_ = (
        ("version", _uint),
        ("numPartitions", _uint),
        ("partitionInfo", _Unsupported * _MAX_PARTITIONS),
    )


class CallFailed(Exception):
    """A call of the library that failed: the function's name and its return code FM_ST_*."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(name, code)
        self.name, self.code = name, code


def _versioned(kind: Any, number: int = 1) -> Any:
    """Return an empty structure of *kind*, its ``version`` as MAKE_FM_PARAM_VERSION sets it."""
    return kind(version=ctypes.sizeof(kind) | number << 24)


def _call(library: Any, name: str, *arguments: Any) -> None:
    """Call the library's function *name*.

    :raises CallFailed: if the function does not return FM_ST_SUCCESS
    """
    function = getattr(library, name)
    function.restype = ctypes.c_int
    code = function(*arguments)
    if code != SUCCESS:
        raise CallFailed(name, code)


def _connected(library: Any, address: str, timeout_ms: int) -> ctypes.c_void_p:
    params = _versioned(_ConnectParams, 2)
    params.addressInfo = address.encode()
    params.timeoutMs = timeout_ms
    is_socket = address.startswith("/")
    params.addressIsUnixSocket = is_socket  # for versions that do not know addressType
    params.addressType = _UNIX if is_socket else _INET
    handle = ctypes.c_void_p()
    _call(library, "fmConnect", ctypes.byref(params), ctypes.byref(handle))
    return handle


def _partitions(library: Any, handle: ctypes.c_void_p) -> dict[str, Any]:
    answer = _versioned(_Partitions)
    _call(library, "fmGetSupportedFabricPartitions", handle, ctypes.byref(answer))
    return {
        "partitions": [
            {
                "id": partition.partitionId,
                "active": bool(partition.isActive),
                "gpus": [
                    {
                        "module": gpu.physicalId,
                        "links": gpu.numNvLinksAvailable,
                        "most_links": gpu.maxNumNvLinks,
                    }
                    for gpu in partition.gpuInfo[: partition.numGpus]
                ],
            }
            for partition in answer.partitionInfo[: answer.numPartitions]
        ],
        "unsupported": _unsupported(library, handle),
        "failed": _failed(library, handle),
    }


def _unsupported(library: Any, handle: ctypes.c_void_p) -> list[dict[str, Any]] | None:
    answer = _versioned(_UnsupportedPartitions)
    try:
        _call(library, "fmGetUnsupportedFabricPartitions", handle, ctypes.byref(answer))
    except (CallFailed, AttributeError):
        return None
    return [
        {"id": partition.partitionId, "modules": partition.gpuPhysicalIds[: partition.numGpus]}
        for partition in answer.partitionInfo[: answer.numPartitions]
    ]


def _failed(library: Any, handle: ctypes.c_void_p) -> list[dict[str, Any]] | None:
    answer = _versioned(_FailedDevices)
    try:
        _call(library, "fmGetNvlinkFailedDevices", handle, ctypes.byref(answer))
    except (CallFailed, AttributeError):
        return None
    gpus, switches = answer.gpuInfo[: answer.numGpus], answer.switchInfo[: answer.numSwitches]
    return [
        {
            "address": device.pciBusId.decode(errors="replace"),
            "is_switch": is_switch,
            "ports": device.portNum[: device.numPorts],
        }
        for is_switch, devices in ((False, gpus), (True, switches))
        for device in devices
    ]


def _activate(library: Any, handle: ctypes.c_void_p, number: str, *functions: str) -> None:
    if not functions:
        _call(library, "fmActivateFabricPartition", handle, _uint(int(number)))
        return
    devices = (_PciDevice * len(functions))(*map(_pci_device, functions))
    name = "fmActivateFabricPartitionWithVFs"
    _call(library, name, handle, _uint(int(number)), devices, _uint(len(functions)))


def _pci_device(address: str) -> _PciDevice:
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    return _PciDevice(*(int(part, 16) for part in (domain, bus, slot, function)))


def _set(library: Any, handle: ctypes.c_void_p, *numbers: str) -> None:
    active = _versioned(_Activated)
    active.numPartitions = len(numbers)
    for place, number in enumerate(numbers):
        active.partitionIds[place] = int(number)
    _call(library, "fmSetActivatedFabricPartitions", handle, ctypes.byref(active))


def _do(library: Any, handle: ctypes.c_void_p, verb: str, *words: str) -> dict[str, Any]:
    if verb == "partitions":
        return _partitions(library, handle)
    if verb == "activate":
        _activate(library, handle, *words)
    elif verb == "deactivate":
        _call(library, "fmDeactivateFabricPartition", handle, _uint(int(words[0])))
    elif verb == "set":
        _set(library, handle, *words)
    else:
        raise ValueError(verb)
    return {"done": True}


def _library() -> Any:
    """Load and return Fabric Manager's library, libnvfm."""
    try:
        return ctypes.CDLL("libnvfm.so.1")
    except OSError:
        return ctypes.CDLL("libnvfm.so")


def probe(address: str, timeout_ms: str, *words: str) -> dict[str, Any]:
    try:
        library = _library()
    except OSError as error:
        return {"error": str(error)}
    try:
        _call(library, "fmLibInit")
        try:
            handle = _connected(library, address, int(timeout_ms))
            try:
                return _do(library, handle, *words)
            finally:
                library.fmDisconnect(handle)
        finally:
            library.fmLibShutdown()
    except CallFailed as error:
        return {"error": error.name, "code": error.code}
    except AttributeError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    print(json.dumps(probe(*sys.argv[1:])))
