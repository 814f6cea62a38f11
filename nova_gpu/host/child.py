# SPDX-License-Identifier: Apache-2.0
"""Child processes for calls that may hang in a driver, so that this process does not hang."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

# A killed process that is inside the driver ends only when the driver releases it; this process
# does not wait for that.
_REAP_S = 1.0


class Failed(Exception):
    """A child process that gave no answer. The text follows its name: ``ended with 1: ...``."""


class TimedOut(Failed):
    """A child process that did not answer in time and was killed.

    ``output`` is what it had printed. ``process`` may live on inside the kernel until the call that
    it waits for returns.
    """

    def __init__(self, reason: str, output: bytes, process: subprocess.Popen[bytes]) -> None:
        super().__init__(reason)
        self.output, self.process = output, process


def script(path: pathlib.Path, *arguments: str) -> Sequence[str]:
    """Return the command that runs one of this package's scripts.

    The scripts import the standard library only: importing other packages takes as long as to
    start.
    """
    return [sys.executable, "-I", "-S", str(path), *arguments]


class Ahead:
    """A process of a :func:`script` that is started in advance.

    Its start takes time that a waiting guest saves. It reads its task from its standard input, and
    ends if that is closed, so it does not outlive this process. Threads may share one object.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, unless one waits already.

        :raises Failed: if it cannot be started
        """
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = _start_reader(script(self._path))

    def run(self, words: bytes, timeout_s: float) -> bytes:
        """Return what the process printed after it had read *words*; start it if none waits.

        :raises Failed: if it cannot be started or fails
        :raises TimedOut: if it takes too long
        """
        with self._lock:
            process, self._process = self._process, None
        if process is None or process.poll() is not None:
            process = _start_reader(script(self._path))
        return _output(process, timeout_s, words)


def run(command: Sequence[str], timeout_s: float, words: bytes | None = None) -> bytes:
    """Run *command* and return what it printed.

    :param words: its standard input
    :raises Failed: if it cannot be started or fails
    :raises TimedOut: if it takes too long
    """
    return _output(_start_reader(command), timeout_s, words)


def _start_reader(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return _start(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)


def _output(process: subprocess.Popen[bytes], timeout_s: float, words: bytes | None) -> bytes:
    status, output, errors = _communicate(process, timeout_s, words)
    if status != 0:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise Failed(f"ended with {status}: {last or 'no message'}")
    return output


def status_and_output(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str]
) -> tuple[int, bytes]:
    """Run *command* and return its exit status and what it printed, errors included.

    It runs in ``/`` and with no other environment than *environment*.

    :raises Failed: if it cannot be started
    :raises TimedOut: if it takes too long
    """
    nothing, both = subprocess.DEVNULL, subprocess.STDOUT
    process = _start(command, stdin=nothing, stderr=both, env=environment, cwd="/")
    status, output, _ = _communicate(process, timeout_s)
    return status, output


def _start(command: Sequence[str], **kwargs: Any) -> subprocess.Popen[bytes]:
    """Start the process in a session of its own.

    :param kwargs: arguments of :class:`subprocess.Popen`
    """
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, **kwargs)
    except OSError as error:
        raise Failed(f"cannot be started: {error}") from error


def _communicate(
    process: subprocess.Popen[bytes], timeout_s: float, words: bytes | None = None
) -> tuple[int, bytes, bytes]:
    try:
        output, errors = process.communicate(words, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        reason = f"did not answer within {timeout_s:g} s"
        raise TimedOut(reason, error.output or b"", process) from error
    finally:
        _end(process)
    return process.returncode, output, errors or b""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process with its whole session. Do not wait for one that cannot be killed."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
