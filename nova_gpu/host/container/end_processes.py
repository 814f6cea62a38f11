# SPDX-License-Identifier: Apache-2.0
"""Script that kills processes, run by :mod:`nova_gpu.host.container.guest_processes`.

Its only argument is one JSON object. A process is identified by its pid and its start time, because
the kernel may give the pid to another process later::

    {"proc": "/proc", "processes": [[812, 33441], ...], "timeout_s": 30}

It returns when all have ended, or after *timeout_s* seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The field of /proc/PID/stat, counted after the command in brackets: proc(5), field 22.
_STARTTIME = 19


def started(process: str) -> int:
    """Return when the process at the path *process* started, in ticks since the boot."""
    with open(f"{process}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[_STARTTIME])


def _kill(proc: str, pid: int, start: int, deadline: float) -> None:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        fd = os.pidfd_open(pid)
        try:
            # From here on the number denotes this process.
            if started(f"{proc}/{pid}") == start:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(fd)


def main(request: dict[str, Any]) -> None:
    deadline = time.monotonic() + request["timeout_s"]
    for pid, start in request["processes"]:
        _kill(request["proc"], pid, start, deadline)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
