# SPDX-License-Identifier: Apache-2.0
"""Script that ends what LXC guests left, run by :mod:`nova_gpu.host.container.guest_processes`.

It runs as root with all of root's rights, which the privileged process does not have: it may look
into the processes of other users, and end them. Its only argument is one JSON object::

    {"proc": "/proc", "devices": [[195, 0]], "uids": [[1000000, 65536]], "timeout_s": 30}

It kills the processes of guests that have one of the *devices* open, and those in the control group
of a guest that has ended, and waits *timeout_s* seconds for their end. It prints all of them, and
those that still have a device open or may have, with the reason::

    {"ended": [[812, "/usr/bin/miner", null]],
     "left": [[813, "/usr/bin/miner", "it does not end"]]}
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from nova_gpu.host import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The program with which libvirt starts a container, an ancestor of all processes in it.
_CONTROLLER = "libvirt_lxc"
# The name of a container's control group, with systemd and without. It contains the pid of the
# container's controller.
_GROUP = re.compile(
    r"/(?:machine-lxc\\x2d([0-9]+)\\x2d[^/\n]*\.scope|lxc-([0-9]+)-[^/\n]*\.libvirt-lxc)(?:/|$)",
    re.MULTILINE,
)

# The first id on the host and the number of ids, from an entry of [libvirt]uid_maps.
Range = tuple[int, int]

UNREAD = "what it has open cannot be read"
DOES_NOT_END = "it does not end"
# In the queue of a socket or a ring of io_uring (IORING_SETUP_REGISTERED_FD_ONLY since Linux 6.5)
MAY_HIDE_IT = "it runs as a guest's user outside all running guests, and may hide what it has open"


class GuestState(enum.Enum):
    """The guest that a process is of."""

    RUNS = enum.auto()
    HAS_ENDED = enum.auto()
    UNKNOWN = enum.auto()


def of_guests(proc: str, uids: Sequence[Range]) -> Iterator[tuple[int, GuestState]]:
    """Yield the processes in *proc* of LXC guests, and those that may be.

    They run as a guest's user or in the control group of an LXC guest. Needs no root.
    """
    statuses: dict[int, Mapping[str, str] | None] = {}
    for pid in processes.pids(proc):
        with contextlib.suppress(*processes.ENDED):
            try:
                statuses[pid] = processes.status(f"{proc}/{pid}")
            except processes.ENDED:
                raise
            except OSError:
                statuses[pid] = None
    for pid, status in statuses.items():
        if status is not None and processes.has_ended(status):
            continue
        if (guest := _guest(proc, pid, statuses, uids)) is not None:
            yield pid, guest


def _guest(
    proc: str, pid: int, statuses: Mapping[int, Mapping[str, str] | None], uids: Sequence[Range]
) -> GuestState | None:
    """Return which guest the process is of, ``None`` for a process of the host."""
    status = statuses[pid]
    if status is None:
        return GuestState.UNKNOWN
    if _is_contained(status, statuses):
        return GuestState.RUNS
    try:
        group = controller(processes.control_groups(f"{proc}/{pid}"))
    except processes.ENDED:
        group = None
    except OSError:
        return GuestState.UNKNOWN
    if group is not None:
        return GuestState.RUNS if _is_controller(statuses.get(group)) else GuestState.HAS_ENDED
    own = [int(uid) for uid in status.get("Uid", "").split()]
    is_guests = any(first <= uid < first + count for uid in own for first, count in uids)
    return GuestState.UNKNOWN if is_guests else None


def controller(control_groups: str) -> int | None:
    """Return the pid of the controller of the container with these control groups, if it is one."""
    match = _GROUP.search(control_groups)
    return int(match[1] or match[2]) if match else None


def _is_contained(
    status: Mapping[str, str], statuses: Mapping[int, Mapping[str, str] | None]
) -> bool:
    """Return whether the process is in a running LXC guest: a descendant of its controller."""
    seen: set[int] = set()
    while (pid := int(status.get("PPid", "0"))) not in seen and (parent := statuses.get(pid)):
        seen.add(pid)
        status = parent
        if _is_controller(status):
            return True
    return False


def _is_controller(status: Mapping[str, str] | None) -> bool:
    """Return whether a process is libvirt's for a container: other users can take its name."""
    if status is None or status.get("Name") != _CONTROLLER:
        return False
    return set(status.get("Uid", "").split()) == {"0"}


def main(request: dict[str, Any]) -> dict[str, Any]:
    proc, uids = request["proc"], request["uids"]
    devices = {(major, minor) for major, minor in request["devices"]}
    deadline = time.monotonic() + request["timeout_s"]
    holders, ended = list(_left(proc, devices, uids)), []
    for pid, command, reason, start in holders:
        if reason is None and start is not None:
            _kill(proc, pid, start, deadline)
            ended.append((pid, command, None))
    if ended:  # The search takes a millisecond for each process of all guests.
        holders = list(_left(proc, devices, uids))
    left = [(pid, command, reason or DOES_NOT_END) for pid, command, reason, _ in holders]
    return {"ended": ended, "left": left}


def _left(
    proc: str, devices: Collection[processes.Number], uids: Sequence[Range]
) -> Iterator[tuple[int, str, str | None, int | None]]:
    """Yield the processes to end, with their start, and those that are not ended, with the reason.

    A guest's users may be those of other programs of the host, too, if the operator's ranges
    overlap. So a process that is known by its user alone is ended only if it has a device open.
    """
    if processes.hides_others(proc):
        pid, command, _ = processes.HIDDEN
        yield pid, command, UNREAD, None
    for pid, guest in of_guests(proc, uids):
        process = f"{proc}/{pid}"
        try:
            start = processes.started(process)
            has_one = not processes.open_devices(process).isdisjoint(devices)
        except processes.ENDED:
            continue
        except OSError:
            yield pid, processes.command(process), UNREAD, None
            continue
        if has_one or guest is GuestState.HAS_ENDED:
            yield pid, processes.command(process), None, start
        elif guest is GuestState.UNKNOWN:
            yield pid, processes.command(process), MAY_HIDE_IT, None


def _kill(proc: str, pid: int, start: int, deadline: float) -> None:
    """Kill the process and wait for its end.

    Its start time tells it from a later process with the same pid.
    """
    with contextlib.suppress(*processes.ENDED):
        fd = os.pidfd_open(pid)
        try:
            # From here on the number denotes this process.
            if processes.started(f"{proc}/{pid}") == start:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(fd)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # A thread may still wait for a process's memory.
