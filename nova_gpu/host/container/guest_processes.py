# SPDX-License-Identifier: Apache-2.0
"""Processes of an LXC guest that outlive it, and so may still have its GPUs' device nodes open.

When a guest ends, the kernel kills all processes in its PID namespace. It does not kill a process
outside of it that entered the guest's other namespaces or received an open node from the guest. A
process that hangs in a driver ends late.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from nova_gpu.core import json_text, model
from nova_gpu.core.printable import printable
from nova_gpu.core.vgpu.vgpu import Slot, of_slot
from nova_gpu.host import child_process, processes
from nova_gpu.host.container import end_processes
from nova_gpu.host.container.end_processes import GuestState, Range
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import open_devices
from nova_gpu.host.vfio.binding import RebindSettings

SCRIPT = child_process.source(pathlib.Path(__file__).with_name("end_processes.py"), processes)


_COMPUTES = "NVIDIA's driver says that it computes there"
# What to do about a process that is not ended, by the reason
_REMEDIES = {
    end_processes.DOES_NOT_END: (
        "see the kernel's log for what it waits for; the host may need a boot"
    ),
    end_processes.UNREAD: open_devices.UNREAD_REMEDY,
    _COMPUTES: "stop the guest that it is in, or end it",
}
_END_IT = "end it, and let [libvirt]uid_maps name ids that no other program of the host uses"


class Process(NamedTuple):
    """A process of the host: its pid, its command, and why it is not ended, if it is not."""

    pid: int
    command: str
    reason: str | None

    def __str__(self) -> str:
        text = f"{printable(self.command)} (pid {self.pid})"
        return f"{text}: {self.reason}" if self.reason else text

    @property
    def remedy(self) -> str:
        return _REMEDIES.get(self.reason or "", _END_IT)


def ranges(uid_maps: Sequence[str]) -> list[Range]:
    """Return the ranges of user ids that guests' users have on the host, by ``[libvirt]uid_maps``.

    Its entries are ``guest:host:count``. Those that Nova refuses are left out.
    """
    spans = []
    for uid_map in uid_maps:
        with contextlib.suppress(ValueError):
            _guest, first, count = (int(part) for part in uid_map.split(":"))
            spans.append((first, count))
    return spans


def may_be_left(roots: Roots, uids: Sequence[Range]) -> bool:
    """Return whether a guest's process runs outside of all LXC guests, or that is unknown."""
    proc = str(roots.proc)
    if not uids or not roots.shows_all_processes() or processes.hides_others(proc):
        return True
    return any(guest is not GuestState.RUNS for _, guest in end_processes.of_guests(proc, uids))


def unknown(roots: Roots, uids: Sequence[Range]) -> list[Process]:
    """Return the processes that run as a guest's user outside all guests. Needs no root."""
    proc = str(roots.proc)
    return [
        Process(pid, processes.command(f"{proc}/{pid}"), None)
        for pid, guest in end_processes.of_guests(proc, uids)
        if guest is GuestState.UNKNOWN
    ]


def computing(
    device: model.GPU | Slot, roots: Roots, uids: Sequence[Range], timeout_s: float
) -> list[Process]:
    """Return the processes of any guest that compute on *device* by what NVML says.

    A process may have a card by /dev/nvidiactl alone, which each guest has open, so that /proc
    shows nothing of the card. Needs no root. Processes of the host are left out, unless /proc hides
    whose they are.
    """
    card = device.parent if isinstance(device, Slot) else device.address
    instance = of_slot(device.number) if isinstance(device, Slot) else None
    proc = str(roots.proc)
    is_hidden = processes.hides_others(proc)
    if not is_hidden and not any(end_processes.of_guests(proc, uids)):
        return []  # NVML takes seconds, and a host without guests needs no answer.
    contexts = nvml.computing(card, timeout_s)
    guests = {pid for pid, _ in end_processes.of_guests(proc, uids)}
    if is_hidden:
        guests.update({pid for pid, *_ in contexts}.difference(processes.pids(proc)))
    return [
        Process(pid, processes.command(f"{proc}/{pid}"), _COMPUTES)
        for pid, *ids in contexts
        if pid in guests and (instance is None or tuple(ids) == instance)
    ]


def end(
    device: model.GPU | Slot, settings: RebindSettings, uids: Sequence[Range]
) -> tuple[list[Process], list[Process]]:
    """Kill guests' processes that have *device*, whose guest has ended, open. Needs root.

    The host's own processes, such as nvidia-persistenced, are left alone.

    :returns: the processes that were killed, and those that have the device open or may have
    :raises Failed: if the search for the processes, or killing them, fails
    """
    devices = (
        open_devices.of_instance(device, settings.roots)
        if isinstance(device, Slot)
        else open_devices.numbers(device, settings.roots)
    )
    if not devices:
        return [], []
    request = {
        "proc": str(settings.roots.proc),
        "devices": sorted(devices),
        "uids": uids,
        "timeout_s": settings.timeout_s / 2,
    }
    output = child_process.run(
        child_process.script(SCRIPT, json.dumps(request)), settings.timeout_s
    )
    answer = json_text.parse(output)
    ended, left = (
        [Process(*process) for process in answer[outcome]] for outcome in ("ended", "left")
    )
    return ended, left
