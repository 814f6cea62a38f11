# SPDX-License-Identifier: Apache-2.0
"""Ends processes: a script, run by :mod:`nova_gpu.host.container.guest_processes`.

Its only argument is one JSON object; a process is named by its number and its start, as the kernel
may give a number to another one::

    {"proc": "/proc", "processes": [[812, 33441], ...], "timeout_s": 30}

It returns when all have ended, or after *timeout_s* seconds. Instead of the processes it may be
told of a running container, by the process that libvirt started it with, and of devices::

    {"proc": "/proc", "controller": 4710, "devices": [[195, 0], ...], "timeout_s": 30}

Then it ends what of that container has one of them open, until there is nothing, and prints
``{"ended": ["python3 (pid 812)", ...], "left": [...]}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Any

# Of /proc/PID/stat, counted behind the command in brackets: proc(5), field 22.
_STARTTIME = 19


def started(process: str) -> int:
    """When the process in this folder was started, in ticks since the host's boot.

    :raises OSError: where there is none
    """
    with open(f"{process}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[_STARTTIME])


def _kill(proc: str, pid: int, start: int, deadline: float) -> None:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        fd = os.pidfd_open(pid)
        try:
            # From here on the number is this process's.
            if started(f"{proc}/{pid}") == start:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(fd)


def _holders(
    proc: str, controller: int, devices: Collection[tuple[int, int]]
) -> Iterator[tuple[int, int, str]]:
    """(pid, start, command) of those of the container's that have one of *devices* open, wherever
    they have found it.

    The control group of a container is named after its controller: ``lxc-4710-instance-00000001``,
    by systemd with ``\\x2d`` for -.
    """
    dash = rb"(-|\\x2d)"
    group = re.compile(rb"lxc%b%d%b" % (dash, controller, dash))
    for name in filter(str.isdecimal, os.listdir(proc)):
        folder = f"{proc}/{name}"
        with contextlib.suppress(OSError):  # it has ended
            with open(f"{folder}/cgroup", "rb") as file:
                is_of_container = group.search(file.read()) is not None
            if is_of_container and _has_open(f"{folder}/fd", devices):
                with open(f"{folder}/comm") as file:
                    command = file.read().strip()
                yield int(name), started(folder), command


def _has_open(folder: str, devices: Collection[tuple[int, int]]) -> bool:
    for fd in os.listdir(folder):
        with contextlib.suppress(OSError):  # closed meanwhile
            status = os.stat(f"{folder}/{fd}")
            number = os.major(status.st_rdev), os.minor(status.st_rdev)
            if stat.S_ISCHR(status.st_mode) and number in devices:
                return True
    return False


def _end_holders(request: dict[str, Any], deadline: float) -> None:
    proc, controller = request["proc"], request["controller"]
    devices = {(major, minor) for major, minor in request["devices"]}
    ended: dict[tuple[int, int], str] = {}
    # What one has begun while it was looked at has the device from it.
    while (found := list(_holders(proc, controller, devices))) and time.monotonic() < deadline:
        for pid, start, command in found:
            _kill(proc, pid, start, deadline)
            ended[pid, start] = f"{command} (pid {pid})"
    left = {(pid, start): f"{command} (pid {pid})" for pid, start, command in found}
    gone = [words for key, words in ended.items() if key not in left]
    print(json.dumps({"ended": gone, "left": list(left.values())}))


def main(request: dict[str, Any]) -> None:
    deadline = time.monotonic() + request["timeout_s"]
    if "controller" in request:
        _end_holders(request, deadline)
        return
    for pid, start in request["processes"]:
        _kill(request["proc"], pid, start, deadline)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
