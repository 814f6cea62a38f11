# SPDX-License-Identifier: Apache-2.0
"""Turns between processes that ask NVML and one that divides a card.

A card that is open, as it is while NVML is asked, cannot be divided.

Threads of a process take turns by a lock of its own. Processes do by locks of a file that root and
nova alone may open: one that asks shares it, one that has a card divided has it alone. A process
that may not open it asks without a turn, as NVIDIA's own commands do.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import stat
import threading
import time
from collections.abc import Iterator

PROBE = pathlib.Path(__file__).with_name("nvml_probe.py")

_turn = threading.Lock()
_file: pathlib.Path | None = None
_POLL_S = 0.1
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def share(path: pathlib.Path) -> None:
    """Take turns in this process with all that share the file at *path*, in a folder of nova's."""
    global _file
    _file = path


@contextlib.contextmanager
def asking(timeout_s: float) -> Iterator[str | None]:
    """Wait for the caller's turn to ask; yield why it has none, or ``None``."""
    with _turn, _opened() as fd:
        has_it = _lock(fd, fcntl.LOCK_SH, timeout_s)
        yield None if has_it else f"{_file} stays locked, as by who has a card divided"


@contextlib.contextmanager
def held_back(timeout_s: float) -> Iterator[None]:
    """Keep all processes from asking, unless one goes on asking for *timeout_s*."""
    with _turn, _opened() as fd:
        _lock(fd, fcntl.LOCK_EX, timeout_s)
        yield


@contextlib.contextmanager
def _opened() -> Iterator[int | None]:
    """Yield the shared file, ``None`` where this process shares or may open none."""
    fd = None
    if _file:
        with contextlib.suppress(OSError):
            fd = _open(_file)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _open(path: pathlib.Path) -> int:
    """Open the file at *path*, or create it, for its owner and root only.

    Anyone who can open the file can lock it.

    :raises OSError: where this process may not open it
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    owner = path.parent.stat()
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
        made = True
    except FileExistsError:
        fd = os.open(path, flags)
        made = False
    status = os.fstat(fd)
    with contextlib.suppress(OSError):
        if made and os.geteuid() == 0:  # nova-gpu is run by root, nova-compute is not
            os.fchown(fd, owner.st_uid, owner.st_gid)
        # Never of somebody else's file that nova linked to there
        if status.st_uid == owner.st_uid and status.st_mode & _OTHERS:
            os.fchmod(fd, stat.S_IMODE(status.st_mode) & ~_OTHERS)
    return fd


def _lock(fd: int | None, operation: int, timeout_s: float) -> bool:
    ends = time.monotonic() + timeout_s
    while fd is not None:
        try:
            fcntl.flock(fd, operation | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= ends:
                return False
        time.sleep(_POLL_S)
    return True
