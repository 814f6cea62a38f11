# SPDX-License-Identifier: Apache-2.0
"""One child process with a log, a deadline and its lines as they come."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

_POLL_S = 0.1
# Who takes down what he has started needs half a minute on a busy machine.
_GRACE_S = 60.0


class Stopped(Exception):
    """The process was ended because everything is to end."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a process ended: its exit status, its lines, whether the deadline ended it, and the
    seconds of processors that it had, with the processes that it waited for."""

    returncode: int
    lines: tuple[str, ...]
    timed_out: bool
    cpu_s: float = dataclasses.field(default=0.0, compare=False)


def run(
    argv: Sequence[str],
    *,
    log: Path,
    environ: Mapping[str, str],
    limit_s: float,
    on_line: Callable[[str], None] = lambda line: None,
    stop: threading.Event | None = None,
) -> Finished:
    """Run ``argv`` in a session of its own, call ``on_line`` with each line of its output.

    The output goes to a file and is read from there, not through a pipe: a daemon that a test
    left behind would keep a pipe open for ever.

    :raises Stopped: when *stop* was set; nothing runs any more then
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    pending = ""

    def read_on(source: TextIO) -> None:
        nonlocal pending
        *complete, pending = (pending + source.read()).split("\n")
        for line in complete:
            lines.append(line)
            on_line(line)

    with log.open("wb") as sink, log.open(encoding="utf-8", errors="replace", newline="\n") as out:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
        deadline = time.monotonic() + limit_s
        timed_out = False
        cpu_s = 0.0
        try:
            while (used_s := _ended(child)) is None:
                read_on(out)
                if stop and stop.is_set():
                    raise Stopped(argv[0])
                if time.monotonic() > deadline:
                    timed_out = True
                    break
                time.sleep(_POLL_S)
            cpu_s = used_s or 0.0
        finally:
            _end(child)
        read_on(out)
    if pending:
        lines.append(pending)
        on_line(pending)
    return Finished(child.returncode, tuple(lines), timed_out, cpu_s)


def _ended(child: subprocess.Popen[bytes]) -> float | None:
    """The seconds of processors that it had, ``None`` while it runs."""
    pid, status, usage = os.wait4(child.pid, os.WNOHANG)
    if not pid:
        return None
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def _end(child: subprocess.Popen[bytes]) -> None:
    """End what still runs of the child's process group: asked first, then killed."""
    if child.poll() is not None:
        return
    os.killpg(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
