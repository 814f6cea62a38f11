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
    """How a process ended: its exit status, its lines, whether the deadline ended it. ``cpu_s``:
    processor time of it and of the children that it, or one of them, has waited for."""

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
    niceness: int = 0,
) -> Finished:
    """Run ``argv`` in a session of its own, call ``on_line`` with each line of its output.

    The output goes to a file and is read from there, not through a pipe: a daemon that a test
    left behind would keep a pipe open for ever.

    :param niceness: how far it stands back where others want the processors too

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
            [*(("nice", "-n", str(niceness)) if niceness else ()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
        deadline = time.monotonic() + limit_s
        timed_out = False
        ended = _Ended(child)
        try:
            while not ended.now():
                read_on(out)
                if stop and stop.is_set():
                    raise Stopped(argv[0])
                if time.monotonic() > deadline:
                    timed_out = True
                    break
                time.sleep(_POLL_S)
        finally:
            _end(child, ended)
        read_on(out)
    if pending:
        lines.append(pending)
        on_line(pending)
    return Finished(child.returncode, tuple(lines), timed_out, ended.cpu_s)


class _Ended:
    """Whether a child has ended, and what it took: Popen itself waits without asking for that."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self.cpu_s = 0.0

    def now(self, options: int = os.WNOHANG) -> bool:
        if self._child.returncode is None:
            pid, status, used = os.wait4(self._child.pid, options)
            if not pid:
                return False
            self._child.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_s = used.ru_utime + used.ru_stime
        return True

    def within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.now() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self.now()


def _end(child: subprocess.Popen[bytes], ended: _Ended) -> None:
    """End what still runs of the child's process group: asked first, then killed."""
    if ended.now():
        return
    os.killpg(child.pid, signal.SIGTERM)
    ended.within(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    ended.now(0)
