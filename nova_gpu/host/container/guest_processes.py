# SPDX-License-Identifier: Apache-2.0
"""Processes of an LXC guest that outlive it, and so may still have its GPUs' device nodes open.

When a guest ends, the kernel kills all processes in its PID namespace. It does not kill a process
outside of it that entered the guest's other namespaces or received an open node from the guest. A
process that hangs in a driver ends late.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from nova_gpu.core import model
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host import child
from nova_gpu.host.container import end_processes
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import open_devices, rebinder
from nova_gpu.host.vfio.rebinder import Means

SCRIPT = pathlib.Path(__file__).with_name("end_processes.py")

# The program with which libvirt starts a container, an ancestor of all processes in it.
_CONTROLLER = "libvirt_lxc"
# The beginning of the name of a container's control group: with systemd (machine-lxc\x2d...) and
# without.
_GROUPS = ("machine-lxc", ".libvirt-lxc")

# The first id on the host and the number of ids, from an entry of [libvirt]uid_maps.
Range = tuple[int, int]


class Process(NamedTuple):
    """A process of the host.

    ``started`` is in ticks since the host's boot, and distinguishes it from a later process with
    the same pid. ``command`` is its command line.
    """

    pid: int
    started: int
    command: str

    def __str__(self) -> str:
        return f"{self.command} (pid {self.pid})"


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
    """Return whether a process with one of *uids* may run outside of all running LXC guests.

    Return true if it is unknown. Needs no root.
    """
    if not uids or not roots.shows_all_processes():
        return True
    names = [name for name in os.listdir(roots.proc) if name.isdecimal()]
    if names and "1" not in names:
        return True  # other users' processes are not shown (hidepid)
    statuses = {}
    for name in names:
        try:
            statuses[name] = _status(roots.proc / name)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            return True
    return any(
        _is_guests(status, uids) and not _is_contained(status, statuses)
        for status in statuses.values()
    )


def end(
    device: model.GPU | Slot, means: Means, uids: Sequence[Range]
) -> tuple[list[Process], list[Process]]:
    """Kill guests' processes that have *device*, whose guest has ended, open. Needs root.

    The host's own processes, such as nvidia-persistenced, are left alone.

    :returns: all processes that were to be killed, and those that still have the device open
    :raises Failed: if the search for the processes, or killing them, fails
    """
    devices = (
        open_devices.of_instance(device, means.roots)
        if isinstance(device, Slot)
        else open_devices.numbers(device, means.roots)
    )
    holders = list(_left(devices, means, uids))
    if not holders:
        return [], []
    request = {
        "proc": str(means.roots.proc),
        "processes": [(holder.pid, holder.started) for holder in holders],
        "timeout_s": means.timeout_s / 2,
    }
    child.run(child.script(SCRIPT, json.dumps(request)), means.timeout_s)
    return holders, list(_left(devices, means, uids))


def _left(
    devices: Collection[open_devices.Number], means: Means, uids: Sequence[Range]
) -> Iterator[Process]:
    if not devices:
        return
    # The privileged process may not look into other users' processes, nor end them; a program that
    # it starts may.
    answer = rebinder.look({"devices": sorted(devices)}, means)
    for pid, command, _ in answer["holders"]:
        folder = means.roots.proc / str(pid)
        with contextlib.suppress(OSError):  # it has ended
            started = end_processes.started(str(folder))
            if _came_from_guest(folder, uids):
                yield Process(pid, started, command)


def _came_from_guest(process: pathlib.Path, uids: Sequence[Range]) -> bool:
    """Return whether the process runs as a guest's user or in an LXC guest's control group."""
    groups = (process / "cgroup").read_text()
    return _is_guests(_status(process), uids) or any(group in groups for group in _GROUPS)


def _status(process: pathlib.Path) -> Mapping[str, str]:
    """Return the fields of the file ``status`` of *process*, a folder in /proc."""
    lines = (process / "status").read_text(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _is_guests(status: Mapping[str, str], uids: Sequence[Range]) -> bool:
    own = [int(uid) for uid in status.get("Uid", "").split()]
    return any(first <= uid < first + count for uid in own for first, count in uids)


def _is_contained(status: Mapping[str, str], statuses: Mapping[str, Mapping[str, str]]) -> bool:
    """Return whether the process is in a running LXC guest: a descendant of libvirt_lxc."""
    seen: set[str] = set()
    while (parent := status.get("PPid", "0")) in statuses and parent not in seen:
        seen.add(parent)
        status = statuses[parent]
        if status.get("Name") == _CONTROLLER:
            return True
    return False
