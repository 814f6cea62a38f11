# SPDX-License-Identifier: Apache-2.0
"""Computes on every card that CUDA's driver finds, and prints their addresses as JSON. Run as a
script, in whatever the caller gives it: it needs Python and libcuda alone.

::

    {"cards": ["0000:19:00.0"], "error": null}

With a card in MIG mode CUDA names the card, and computes on one of its instances.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

_BYTES = 1 << 20
_PATTERN = 0xA5


class _Failed(Exception):
    """A call of CUDA's, and its number for why."""


def _cards() -> list[str]:
    cuda = ctypes.CDLL("libcuda.so.1")
    _call(cuda, "cuInit", 0)
    count = ctypes.c_int()
    _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    return [_card(cuda, number) for number in range(count.value)]


def _card(cuda: Any, number: int) -> str:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call(cuda, "cuDeviceGet", ctypes.byref(device), number)
    address = ctypes.create_string_buffer(64)
    _call(cuda, "cuDeviceGetPCIBusId", address, len(address), device)
    _call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        _call(cuda, "cuCtxSetCurrent", context)
        _compute(cuda)
    finally:
        _call(cuda, "cuDevicePrimaryCtxRelease_v2", device)
    return address.value.decode()


def _compute(cuda: Any) -> None:
    """What the card writes to its memory must be what is read from there."""
    memory = ctypes.c_uint64()
    _call(cuda, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(_BYTES))
    try:
        _call(cuda, "cuMemsetD8_v2", memory, ctypes.c_ubyte(_PATTERN), ctypes.c_size_t(_BYTES))
        read = ctypes.create_string_buffer(_BYTES)
        _call(cuda, "cuMemcpyDtoH_v2", read, memory, ctypes.c_size_t(_BYTES))
        if read.raw != bytes([_PATTERN]) * _BYTES:
            raise _Failed("the card's memory has something else than was written")
    finally:
        _call(cuda, "cuMemFree_v2", memory)


def _call(cuda: Any, name: str, *arguments: Any) -> None:
    if code := getattr(cuda, name)(*arguments):
        raise _Failed(f"{name}: {code}")


if __name__ == "__main__":
    try:
        print(json.dumps({"cards": _cards(), "error": None}))
    except (_Failed, OSError) as error:
        print(json.dumps({"cards": [], "error": str(error)}))
        sys.exit(1)
