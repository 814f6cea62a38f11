# SPDX-License-Identifier: Apache-2.0
"""Child processes for calls that may hang in a driver, so that nova-compute does not hang."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any

# A killed process that is inside the driver ends only when the driver releases it; this process
# does not wait for that.
_REAP_S = 1.0
_POLL_S = 0.01


class Failed(Exception):
    """A child process that failed.

    The message is such as ``ended with 1: ...``; callers put the name of the process before it.
    """


class TimedOut(Failed):
    """A child process that was killed because it did not end in time.

    ``output`` is what it had printed by then. ``process`` may live on inside the kernel until the
    system call in which it hangs returns.
    """

    def __init__(self, reason: str, output: bytes, process: subprocess.Popen[bytes]) -> None:
        super().__init__(reason)
        self.output, self.process = output, process


# The modules that a script imports exist in its process before it runs.
_WITH_MODULES = """import sys, types
for name, text in {modules!r}:
    package, _, last = name.rpartition(".")
    module = sys.modules[name] = types.ModuleType(name)
    exec(text, vars(module))
    setattr(sys.modules.setdefault(package, types.ModuleType(package)), last, module)
exec({text!r})
"""


def source(path: pathlib.Path, *modules: types.ModuleType) -> str:
    """Return the script at *path*, with the *modules* of this package that it imports, as a text.

    Call it when a module is imported: once the package is upgraded, its files are those of another
    release than the service that still runs. A module must import the standard library only: other
    imports would double the time until a script starts.
    """
    text = path.read_text()
    if not modules:
        return text
    texts = [
        (module.__name__, pathlib.Path(str(module.__file__)).read_text()) for module in modules
    ]
    return _WITH_MODULES.format(modules=texts, text=text)


def script(text: str, *arguments: str) -> Sequence[str]:
    """Return the command that runs a :func:`source` with the standard library alone."""
    return [sys.executable, "-I", "-S", "-c", text, *arguments]


def run(command: Sequence[str], timeout_s: float, stdin: bytes | None = None) -> bytes:
    """Run *command* with the standard input *stdin*, and return its standard output.

    :raises Failed: if it cannot be started or exits with an error
    :raises TimedOut: if it does not end within *timeout_s*
    """
    process = _start(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    status, output, errors = _communicate(process, timeout_s, stdin)
    if status != 0:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise Failed(f"ended with {status}: {last or 'no message'}")
    return output


def status_and_output(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str]
) -> tuple[int, bytes]:
    """Run *command* and return its exit status, and its standard output and error together.

    It runs in the folder ``/`` and with no environment variables but *environment*.

    :raises Failed: if it cannot be started
    :raises TimedOut: if it does not end within *timeout_s*
    """
    nothing, both = subprocess.DEVNULL, subprocess.STDOUT
    process = _start(command, stdin=nothing, stderr=both, env=environment, cwd="/")
    status, output, _ = _communicate(process, timeout_s)
    return status, output


def _start(command: Sequence[str], **kwargs: Any) -> subprocess.Popen[bytes]:
    """Start the process in a session of its own, so that its children can be killed with it."""
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, **kwargs)
    except OSError as error:
        raise Failed(f"cannot be started: {error}") from error


def _communicate(
    process: subprocess.Popen[bytes], timeout_s: float, stdin: bytes | None = None
) -> tuple[int, bytes, bytes]:
    try:
        output, errors = process.communicate(stdin, timeout=timeout_s)
    except Exception as error:  # eventlet's Popen raises the class of its own copy of the module
        if type(error).__name__ != subprocess.TimeoutExpired.__name__:
            raise
        reason = f"did not answer within {timeout_s:g} s"
        raise TimedOut(reason, getattr(error, "output", None) or b"", process) from error
    finally:
        _end(process)
    return process.returncode, output, errors or b""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process with its process group. Do not wait long if it hangs in the kernel."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        until = time.monotonic() + _REAP_S
        while process.poll() is None and time.monotonic() < until:
            time.sleep(_POLL_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
