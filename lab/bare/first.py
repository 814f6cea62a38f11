# SPDX-License-Identifier: Apache-2.0
"""The first process in a bare root: it runs one command, and reaps orphaned processes.

The root's own Python runs this file as text: `python3 -c TEXT FOLDER COMMAND...`. It ends with the
command's exit status; then the kernel kills the other processes of the root.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def main(folder: str, command: list[str]) -> int:
    # The command receives a terminal's interrupt itself; the first process must not end by it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The signals that arrive before the child exists: the kernel drops a signal to a first process
    # without a handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        child = subprocess.Popen(command, cwd=folder, preexec_fn=_reset_signals)
    except OSError as error:
        print(f"tools/bare: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _reset_signals() -> None:
    """Undo, in the child, the signal settings that the command would inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
