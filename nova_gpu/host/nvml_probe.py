# SPDX-License-Identifier: Apache-2.0
"""Asks NVIDIA's management library and prints one JSON object. Run as a script, never imported.

It is a process of its own because the library opens every card, because a card whose node is open
cannot be given to a guest, and because a library call can hang. It needs nothing of this package,
so that it starts fast::

    {"gpus": [{"address": "00000000:19:00.0", "name": "NVIDIA H200", "architecture": 9,
               "memory": 150754820096, "compute_capability": [9, 0], "uuid": "GPU-...",
               "minor": 0, "nvlinks": [["00000000:05:00.0", 2], ...]}, ...]}
    {"error": "why there are none"}

``architecture`` and the second of each NVLink (the kind of device at its other end) are NVML's own
numbers. What the library does not know of a card is null.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def _gpus(nvml: Any) -> list[dict[str, Any]]:
    def ask(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except nvml.NVMLError:
            return None

    def nvlinks(handle: Any) -> list[tuple[str, int]]:
        found = []
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            state = ask(nvml.nvmlDeviceGetNvLinkState, handle, link)
            if state is None:  # the card has no such link, hence no later one
                break
            if state == nvml.NVML_FEATURE_ENABLED:
                peer = ask(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
                kind = ask(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
                if peer is not None and kind is not None:
                    found.append((text(peer.busId), kind))
        return found

    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        # A card that is lost has no handle any more; the others are asked all the same.
        handle = ask(nvml.nvmlDeviceGetHandleByIndex, index)
        pci = ask(nvml.nvmlDeviceGetPciInfo, handle) if handle is not None else None
        if pci is None:
            continue
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        gpus.append(
            {
                "address": text(pci.busId),
                "name": text(ask(nvml.nvmlDeviceGetName, handle)),
                "architecture": ask(nvml.nvmlDeviceGetArchitecture, handle),
                "memory": memory and memory.total,
                "compute_capability": ask(nvml.nvmlDeviceGetCudaComputeCapability, handle),
                "uuid": text(ask(nvml.nvmlDeviceGetUUID, handle)),
                "minor": ask(nvml.nvmlDeviceGetMinorNumber, handle),
                "nvlinks": nvlinks(handle),
            }
        )
    return gpus


def text(value: Any) -> Any:
    """Old releases of the binding give bytes."""
    return value.decode() if isinstance(value, bytes) else value


def probe() -> dict[str, Any]:
    try:
        import pynvml  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        return {"error": f"nvidia-ml-py cannot be imported ({error}); install nova-gpu[nvml]"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": f"nvmlInit: {error}"}
    try:
        return {"gpus": _gpus(pynvml)}
    except pynvml.NVMLError as error:
        return {"error": str(error)}
    finally:
        pynvml.nvmlShutdown()


if __name__ == "__main__":
    print(json.dumps(probe()))
