# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: who asks NVML has cards open, and while a process has one open it cannot be
divided.

Threads of a process take turns by a lock of its own. Processes do by locks of the file that they
start to ask, whoever runs them, as far as they are of one installation: who asks shares it, who has
a card divided has it alone. Who may read a file may lock it, so that nobody waits for it for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
import threading
import time
from collections.abc import Iterator

from nova_gpu.host.state import files

PROBE = pathlib.Path(__file__).with_name("nvml_probe.py")

_locked = PROBE
_turn = threading.Lock()
_POLL_S = 0.1


@contextlib.contextmanager
def asking(timeout_s: float) -> Iterator[str | None]:
    """Why nobody may ask for so long; ``None`` where it is the caller's turn.

    :raises OSError: where it cannot be known
    """
    with _turn, files.opened(_locked) as fd:
        has_it = _lock(fd, fcntl.LOCK_SH, timeout_s)
        yield None if has_it else f"{_locked} stays locked, as by who has a card divided"


@contextlib.contextmanager
def held_back(timeout_s: float) -> Iterator[None]:
    """Nobody asks meanwhile, but for a process that goes on with it for so long, as none should.

    :raises OSError: as :func:`asking`
    """
    with _turn, files.opened(_locked) as fd:
        _lock(fd, fcntl.LOCK_EX, timeout_s)
        yield


def _lock(fd: int, operation: int, timeout_s: float) -> bool:
    ends = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, operation | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= ends:
                return False
        time.sleep(_POLL_S)
