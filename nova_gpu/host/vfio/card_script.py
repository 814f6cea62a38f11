# SPDX-License-Identifier: Apache-2.0
"""Script that binds PCI functions to drivers and resets them, run by :mod:`.binding`.

It runs as a process of its own because the kernel may wait for ever: a write to ``unbind`` returns
only when the driver has released the function, a reset when the card has come back. Of this package
it imports only :mod:`nova_gpu.host.processes`, so that it starts fast: a guest waits for it. Its
task is one line on its standard input, a JSON object; all keys but ``sysfs`` and ``proc`` may be
missing::

    {"sysfs": "/sys", "proc": "/proc", "devices": [[195, 0], [226, 1]],
     "settle_s": 5, "overrides": {"0000:81:00.0": null, ...},
     "moves": [{"address": "0000:81:00.0", "driver": "vfio-pci", "override": "vfio-pci"}, ...],
     "functions": ["0000:81:00.0", "0000:81:00.1"], "way": "bus", "vfio": "/dev/vfio", "wait_s": 30}

If a process has one of the character *devices* (major, minor) open, or may have it open because
what it has open cannot be read (null in place of its devices), nothing is read or bound. If the
driver_override of a function differs from its expected value in *overrides*, nothing is bound.
``driver`` null leaves a function without a driver; ``override`` becomes its driver_override, null
clears that. A driver may probe after the write has returned (PROBE_PREFER_ASYNCHRONOUS): the script
waits for it for *settle_s* seconds.

For a reset it waits *wait_s* seconds until VFIO's groups of the *functions* can be opened. Then,
with *way* ``functions``, it resets each function by its file ``reset``, with ``bus`` their whole
bus at once, with null nothing, and checks that each function answers.

Before each step it prints a line with the step, so that the last line names the step that hangs,
and in the end one JSON object::

    {"error": null, "overrides": {},
     "holders": [[812, "/usr/bin/nvidia-persistenced", [[195, 0]]], ...]}
    {"error": null, "overrides": {"0000:81:00.0": null, ...}, "holders": []}
    {"error": "why a function is not with its driver, or not reset", "overrides": {}, "holders": []}
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

from nova_gpu.host import processes

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is half as much to load as all the rest
    from typing import Any

# The text of driver_override if it was never written or was cleared (drivers/pci/pci-sysfs.c).
_NO_OVERRIDE = ("(null)", "")
_STEP_S, _LOOK_AGAIN_S = 0.02, 0.1
_ABSENT = b"\xff\xff"

# include/uapi/linux/vfio.h: _IO(VFIO_TYPE, VFIO_BASE + n)
_SET_IOMMU = 0x3B66
_GROUP_SET_CONTAINER = 0x3B68
_GROUP_GET_DEVICE_FD = 0x3B6A
_PCI_HOT_RESET = 0x3B71
_TYPE1V2_IOMMU = 3


class _Failed(Exception):
    """The reason why a function was not bound to its driver, not reset, or does not answer."""


def _move(
    sysfs: str, proc: str, settle_s: float, address: str, driver: str | None, override: str | None
) -> None:
    device = f"{sysfs}/bus/pci/devices/{address}"
    _write(f"{device}/driver_override", f"{override or ''}\n")
    present = _driver(device)
    if present == driver:
        return
    if present is not None:
        _lock(f"{proc}/driver/nvidia/gpus/{address}/unbindLock")
        _say(f"unbinding {address} from {present}")
        _write(f"{device}/driver/unbind", address)
        _settle(device, None, settle_s)
    if driver is not None:
        _say(f"binding {address} to {driver}")
        # Not drivers_probe: without an override it takes the first driver that matches the
        # function.
        _write(f"{sysfs}/bus/pci/drivers/{driver}/bind", address)
        _settle(device, driver, settle_s)


def _lock(path: str) -> None:
    """Take the card's unbindLock in /proc, so that no process can open the card any more.

    Do nothing if the file does not exist: only NVIDIA's vGPU software has it. The driver grants the
    lock if no process has the card open, and reports that when the file is read back
    (kernel-open/nvidia/nv-procfs.c, nv_procfs_close_unbind_lock).
    """
    if not os.path.exists(path):
        return
    _say(f"locking {path}")
    _write(path, "1\n")
    if _read(path).strip() != b"1":
        raise _Failed(f"{path} was not granted: a process has just opened the card")


def _override(sysfs: str, address: str) -> str | None:
    _say(f"reading driver_override of {address}")
    text = _read(f"{sysfs}/bus/pci/devices/{address}/driver_override").decode("ascii").strip()
    return None if text in _NO_OVERRIDE else text


def _settle(device: str, driver: str | None, settle_s: float) -> None:
    ends = time.monotonic() + settle_s
    while (present := _driver(device)) != driver:
        if time.monotonic() > ends:
            address = device.rpartition("/")[2]
            raise _Failed(
                f"{address} is bound to {present or 'no driver'} and not to {driver or 'none'}, as "
                "the kernel was asked"
            )
        time.sleep(_STEP_S)


def _driver(device: str) -> str | None:
    try:
        return os.readlink(f"{device}/driver").rpartition("/")[2]
    except FileNotFoundError:
        return None


def _reset(request: dict[str, Any]) -> None:
    """Reset the *functions* of the task in its *way*, and check that they answer."""
    devices = f"{request['sysfs']}/bus/pci/devices"
    functions, vfio = request["functions"], request["vfio"]
    with contextlib.suppress(OSError):
        _wait_until_released(_groups(devices, functions, vfio), request["wait_s"])
    if request["way"] == "bus":
        _reset_bus(devices, functions, vfio)
    for function in functions if request["way"] == "functions" else ():
        _say(f"resetting {function}")
        _write(f"{devices}/{function}/reset", "1")
    for function in functions:
        _say(f"reading the configuration space of {function}")
        if _read(f"{devices}/{function}/config", 2) in (b"", _ABSENT):
            raise _Failed(
                f"{function} does not answer after its reset: its configuration space is empty"
            )


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
                raise _Failed(f"{group} is open, in no process that /proc shows")
            time.sleep(_LOOK_AGAIN_S)


def _is_open(group: str) -> bool:
    try:
        os.close(os.open(group, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


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
            raise _Failed(f"the reset of its bus by VFIO: {error}") from error


def _read(path: str, size: int = -1) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError as error:
        raise _Failed(f"{path}: {error.strerror}") from error


def _write(path: str, text: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)
    except OSError as error:
        raise _Failed(f"{path}: {error.strerror}") from error


def _say(step: str) -> None:
    print(step, flush=True)


def main(request: dict[str, Any]) -> dict[str, Any]:
    devices = {(major, minor) for major, minor in request.get("devices", ())}
    _say("looking for who has the card open")
    holders = list(processes.holders(request["proc"], devices))
    error, overrides = None, {}
    try:
        if not holders:
            expected = request.get("overrides", {})
            overrides = {address: _override(request["sysfs"], address) for address in expected}
            for move in request.get("moves", ()) if overrides == expected else ():
                _move(request["sysfs"], request["proc"], request["settle_s"], **move)
            if "functions" in request:
                _reset(request)
    except _Failed as reason:
        error = str(reason)
    return {"error": error, "overrides": overrides, "holders": holders}


if __name__ == "__main__":
    if line := sys.stdin.readline():
        print(json.dumps(main(json.loads(line))), flush=True)
        # A guest waits for the end of this process, most of which would be the interpreter's
        # cleanup.
        os._exit(0)
