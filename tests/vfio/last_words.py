# SPDX-License-Identifier: Apache-2.0
"""What ``tools.coverage`` has seen of a process that is killed."""

from __future__ import annotations

import os
import select
import signal

from tools import measuring

_TIMEOUT_S = 120
_MOST_FDS = 1 << 16


class LastWords:
    """Of one process. Where nothing is measured it is killed, and that is all.

    Writing takes an emulated processor a second, in which it would go on: so a fork of it writes,
    which has nothing of it but its memory.
    """

    def __init__(self) -> None:
        self._pipe = os.pipe() if measuring.folder() else None

    def begin(self) -> None:
        """In the process"""
        if self._pipe:
            signal.signal(signal.SIGTERM, lambda *_: self._write())

    def _write(self) -> None:
        import coverage

        seen = coverage.Coverage.current()
        if os.fork():
            os.kill(os.getpid(), signal.SIGKILL)
        assert seen and self._pipe
        _, told = self._pipe
        # libvirt sees by its connection that the process is dead.
        os.closerange(3, told)
        os.closerange(told + 1, _MOST_FDS)
        seen.save()
        os._exit(0)

    def kill(self, pid: int) -> None:
        """In its parent, which waits for it then. It is dead, and what was seen is written."""
        if self._pipe:
            reads, told = self._pipe
            os.close(told)
            os.kill(pid, signal.SIGTERM)
            # Its end: nobody has the other one open any more.
            select.select([reads], [], [], _TIMEOUT_S)
            os.close(reads)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
