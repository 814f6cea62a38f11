# SPDX-License-Identifier: Apache-2.0
"""Processes that may hang in a driver, and must not take this one with them."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

# A killed process that is inside the driver is not gone before the driver lets go of it; nobody
# waits for that.
_REAP_S = 1.0


class Failed(Exception):
    """Why a process gave no answer, in words that follow its name: ``ended with 1: ...``"""


class TimedOut(Failed):
    """It did not answer in time and was killed. ``output`` is what it had printed; ``process`` may
    live on inside the kernel until what it waits for comes."""

    def __init__(self, reason: str, output: bytes, process: subprocess.Popen[bytes]) -> None:
        super().__init__(reason)
        self.output, self.process = output, process


def script(path: pathlib.Path, *arguments: str) -> Sequence[str]:
    """The command that runs one of this package's scripts, which need the standard library only:
    to find the others takes as long as to start."""
    return [sys.executable, "-I", "-S", str(path), *arguments]


def run(command: Sequence[str], timeout_s: float) -> bytes:
    """What *command* printed.

    :raises Failed: where it cannot be started or fails
    :raises TimedOut: where it takes too long
    """
    status, output, errors = _communicate(command, timeout_s, stderr=subprocess.PIPE)
    if status != 0:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise Failed(f"ended with {status}: {last or 'no message'}")
    return output


def status_and_output(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str]
) -> tuple[int, bytes]:
    """How *command* ended and what it printed, errors too. It runs in ``/`` and with no other
    *environment*.

    :raises Failed: where it cannot be started
    :raises TimedOut: where it takes too long
    """
    status, output, _ = _communicate(
        command, timeout_s, stderr=subprocess.STDOUT, env=environment, cwd="/"
    )
    return status, output


def _communicate(
    command: Sequence[str], timeout_s: float, **kwargs: Any
) -> tuple[int, bytes, bytes]:
    """:param kwargs: of :class:`subprocess.Popen`"""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            **kwargs,
        )
    except OSError as error:
        raise Failed(f"cannot be started: {error}") from error
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        reason = f"did not answer within {timeout_s:g} s"
        raise TimedOut(reason, error.output or b"", process) from error
    finally:
        _end(process)
    return process.returncode, output, errors or b""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the process with its whole session, and does not wait for what cannot be killed."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
