# SPDX-License-Identifier: Apache-2.0
"""Script that binds PCI functions to other drivers, run by :mod:`nova_gpu.host.vfio.binding`.

It runs as a process of its own because a write to ``unbind`` returns only when the driver has
released the function, which may never happen. Of this package it imports only
:mod:`nova_gpu.host.processes`, so that it starts fast: a guest waits for it. Its task is one line
on its standard input, so that it can be started in advance; without one it ends. The line is one
JSON object::

    {"sysfs": "/sys", "proc": "/proc", "devices": [[195, 0], [226, 1]],
     "settle_s": 5, "overrides": {"0000:81:00.0": null, ...},
     "moves": [{"address": "0000:81:00.0", "driver": "vfio-pci", "override": "vfio-pci"}, ...]}

If a process has one of the character *devices* (major, minor) open, or may have it open because
what it has open cannot be read (null in place of its devices), nothing is read or bound. If the
driver_override of a function differs from its expected value in *overrides*, nothing is bound.
``driver`` null leaves a function without a driver; ``override`` becomes its driver_override, null
clears that. A driver may probe after the write has returned (PROBE_PREFER_ASYNCHRONOUS): the script
waits for it for *settle_s* seconds. Before each step it prints a line with the step, so that the
last line names the step that hangs, and in the end one JSON object::

    {"error": null, "overrides": {},
     "holders": [[812, "/usr/bin/nvidia-persistenced", [[195, 0]]], ...]}
    {"error": null, "overrides": {"0000:81:00.0": null, ...}, "holders": []}
    {"error": "why a function is not with its driver", "overrides": {}, "holders": []}
"""

from __future__ import annotations

import json
import os
import sys
import time

from nova_gpu.host import processes

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is half as much to load as all the rest
    from typing import Any

# The text of driver_override if it was never written or was cleared (drivers/pci/pci-sysfs.c).
_NO_OVERRIDE = ("(null)", "")
_STEP_S = 0.02


class _NotMoved(Exception):
    """The reason why a function was not bound to its driver."""


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
    if _text(path) != "1":
        raise _NotMoved(f"{path} was not granted: a process has just opened the card")


def _override(sysfs: str, address: str) -> str | None:
    _say(f"reading driver_override of {address}")
    text = _text(f"{sysfs}/bus/pci/devices/{address}/driver_override")
    return None if text in _NO_OVERRIDE else text


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError as error:
        raise _NotMoved(f"{path}: {error.strerror}") from error


def _settle(device: str, driver: str | None, settle_s: float) -> None:
    ends = time.monotonic() + settle_s
    while (present := _driver(device)) != driver:
        if time.monotonic() > ends:
            address = device.rpartition("/")[2]
            raise _NotMoved(
                f"{address} is bound to {present or 'no driver'} and not to {driver or 'none'}, as "
                "the kernel was asked"
            )
        time.sleep(_STEP_S)


def _driver(device: str) -> str | None:
    try:
        return os.readlink(f"{device}/driver").rpartition("/")[2]
    except FileNotFoundError:
        return None


def _write(path: str, text: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)
    except OSError as error:
        raise _NotMoved(f"{path}: {error.strerror}") from error


def _say(step: str) -> None:
    print(step, flush=True)


def main(request: dict[str, Any]) -> dict[str, Any]:
    devices = {(major, minor) for major, minor in request["devices"]}
    _say("looking for who has the card open")
    holders = list(processes.holders(request["proc"], devices))
    error, overrides = None, {}
    if not holders:
        try:
            overrides = {
                address: _override(request["sysfs"], address) for address in request["overrides"]
            }
            if overrides == request["overrides"]:
                for move in request["moves"]:
                    _move(request["sysfs"], request["proc"], request["settle_s"], **move)
        except _NotMoved as reason:
            error = str(reason)
    return {"error": error, "overrides": overrides, "holders": holders}


if __name__ == "__main__":
    if line := sys.stdin.readline():
        print(json.dumps(main(json.loads(line))), flush=True)
        # A guest waits for the end of this process, most of which would be the interpreter's
        # cleanup.
        os._exit(0)
