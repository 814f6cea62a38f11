# SPDX-License-Identifier: Apache-2.0
"""The operator's folder of passports, read and written by another process, with a deadline.

The folder may be on a file server. A call to one that does not answer cannot be ended, not even by
a signal, so nova-compute makes none: it begins a process in one period and looks at its end in a
later one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping
from typing import IO

from nova_gpu.core import json_text
from nova_gpu.host import child_process

_SCRIPT = child_process.source(pathlib.Path(__file__).with_name("folder_script.py"))
DEADLINE_S = 60.0
_LARGEST = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The texts of files by name, the files that were written, and errors by name.

    An error of the whole folder has the name ``""``.
    """

    read: Mapping[str, str]
    written: Collection[str]
    errors: Mapping[str, str]


class SharedFolder:
    """The folder at *path*; at most one process of it exists, even if it cannot be killed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._began = 0.0
        self._is_late = False

    @property
    def is_busy(self) -> bool:
        return self._process is not None

    def begin(self, write: Mapping[str, str], prefixes: Collection[str]) -> None:
        """Begin to write the files *write*, and to read those that begin with *prefixes*.

        :raises OSError: if the process cannot be started
        """
        order = {"folder": self.path, "write": dict(write), "prefixes": sorted(prefixes)}
        with tempfile.TemporaryFile() as stdin, contextlib.ExitStack() as stack:
            stdin.write(json.dumps(order).encode())
            stdin.seek(0)
            output = stack.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                child_process.script(_SCRIPT),
                stdin=stdin,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
            stack.pop_all()
            self._output = output
        self._began, self._is_late = time.monotonic(), False

    def outcome(self) -> Answer | None:
        """Return what has become of :meth:`begin`, ``None`` while it goes on; do not wait.

        A process that is late is killed, and its answer is the error. It is busy until it has
        ended.
        """
        if self._process is None or self._output is None:
            return None
        status = self._process.poll()
        if status is None:
            if self._is_late or time.monotonic() - self._began < DEADLINE_S:
                return None
            self._is_late = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            return _failed(f"it did not answer within {DEADLINE_S:g} s")
        with self._output as output:
            self._process = self._output = None
            if self._is_late:
                return None  # told before
            output.seek(0)
            return _answer(status, output.read(_LARGEST))


def _answer(status: int, output: bytes) -> Answer:
    try:
        content = json_text.parse(output)
        return Answer(content["read"], content["written"], content["errors"])
    except (ValueError, LookupError, TypeError):
        return _failed(f"the process that reads it ended with {status}")


def _failed(text: str) -> Answer:
    return Answer({}, (), {"": text})
