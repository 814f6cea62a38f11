# SPDX-License-Identifier: Apache-2.0
"""Script that resets PCI functions, run by :mod:`nova_gpu.host.vfio.card_reset`.

It runs as a process of its own because the kernel may wait for a card that does not come back. Its
only argument is one JSON object::

    {"devices": "/sys/bus/pci/devices", "functions": ["0000:81:00.0", "0000:81:00.1"],
     "way": "bus", "vfio": "/dev/vfio", "wait_s": 30}

It waits *wait_s* seconds until VFIO's groups of the functions can be opened. Then, with *way*
``functions``, it resets each function by its file ``reset``, with ``bus`` their whole bus at once,
with null nothing, and checks that each function answers. It prints a line before each step, and in
the end null or the reason of a failure::

    {"error": null}
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# include/uapi/linux/vfio.h: _IO(VFIO_TYPE, VFIO_BASE + n)
_SET_IOMMU = 0x3B66
_GROUP_SET_CONTAINER = 0x3B68
_GROUP_GET_DEVICE_FD = 0x3B6A
_PCI_HOT_RESET = 0x3B71
_TYPE1V2_IOMMU = 3

_ABSENT = b"\xff\xff"
_LOOK_AGAIN_S = 0.1


class _NotReset(Exception):
    """The reason why a function was not reset, or does not answer."""


def _groups(devices: str, functions: list[str], vfio: str) -> list[str]:
    """Return the nodes of the IOMMU groups of *functions*; raise OSError if one has none."""
    links = (os.readlink(f"{devices}/{function}/iommu_group") for function in functions)
    return [f"{vfio}/{name}" for name in dict.fromkeys(map(os.path.basename, links))]


def _wait_until_released(groups: list[str], wait_s: float) -> None:
    """Wait until no file of these groups is open, nor one of a device in them.

    Until then the kernel refuses to open a group, also if a process has only the device, or if the
    file is in the queue of a socket, where no process shows it (drivers/vfio/group.c,
    vfio_group_fops_open: EBUSY). Any other error tells nothing about that.
    """
    ends = time.monotonic() + wait_s
    for group in groups:
        _say(f"opening {group}")
        while _is_open(group):
            if time.monotonic() > ends:
                raise _NotReset(f"{group} is open, in no process that /proc shows")
            time.sleep(_LOOK_AGAIN_S)


def _is_open(group: str) -> bool:
    try:
        os.close(os.open(group, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def _reset_function(device: str) -> None:
    _say(f"resetting {os.path.basename(device)}")
    try:
        fd = os.open(f"{device}/reset", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"1")
        finally:
            os.close(fd)
    except OSError as error:
        raise _NotReset(f"{device}/reset: {error.strerror}") from error


def _reset_bus(devices: str, functions: list[str], vfio: str) -> None:
    """Reset the bus of *functions* through VFIO, as QEMU does.

    The kernel accepts it if all devices on the bus belong to IOMMU groups that this process has
    open (Documentation/driver-api/vfio.rst; drivers/vfio/pci/vfio_pci_core.c,
    vfio_pci_ioctl_pci_hot_reset).
    """
    _say(f"resetting the bus of {functions[0]}")
    with contextlib.ExitStack() as stack:

        def opened(path: str) -> int:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            return fd

        try:
            container = opened(f"{vfio}/vfio")
            files = [opened(group) for group in _groups(devices, functions, vfio)]
            for file in files:
                fcntl.ioctl(file, _GROUP_SET_CONTAINER, struct.pack("i", container))
            fcntl.ioctl(container, _SET_IOMMU, _TYPE1V2_IOMMU)
            # With a mutable buffer fcntl.ioctl returns the call's own result: the descriptor.
            name = bytearray(functions[0].encode() + b"\0")
            card = fcntl.ioctl(files[0], _GROUP_GET_DEVICE_FD, name, True)
            stack.callback(os.close, card)
            size = 12 + 4 * len(files)
            request = struct.pack(f"III{len(files)}i", size, 0, len(files), *files)
            fcntl.ioctl(card, _PCI_HOT_RESET, request)
        except OSError as error:
            raise _NotReset(f"the reset of its bus by VFIO: {error}") from error


def _answers(device: str) -> None:
    try:
        with open(f"{device}/config", "rb") as file:
            vendor = file.read(2)
    except OSError as error:
        raise _NotReset(f"{device}/config: {error.strerror}") from error
    if len(vendor) < 2 or vendor == _ABSENT:
        name = os.path.basename(device)
        raise _NotReset(f"{name} does not answer after its reset: its configuration space is empty")


def _say(step: str) -> None:
    print(step, flush=True)


def main(request: dict[str, Any]) -> dict[str, Any]:
    devices, functions, vfio = request["devices"], request["functions"], request["vfio"]
    try:
        with contextlib.suppress(OSError):
            _wait_until_released(_groups(devices, functions, vfio), request["wait_s"])
        if request["way"] == "bus":
            _reset_bus(devices, functions, vfio)
        elif request["way"] == "functions":
            for function in functions:
                _reset_function(f"{devices}/{function}")
        for function in functions:
            _say(f"reading the configuration space of {function}")
            _answers(f"{devices}/{function}")
    except _NotReset as reason:
        return {"error": str(reason)}
    return {"error": None}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
