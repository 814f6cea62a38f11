# SPDX-License-Identifier: Apache-2.0
"""Processes as the kernel's /proc describes them, and the character devices that they have open.

This is the only reader of what a process can write there: its name, its command line and its
control group. These need not be UTF-8, and may contain characters that control a terminal, so print
them with :func:`nova_gpu.core.printable.printable`.

Functions raise OSError if the kernel does not report what they read, one of ENDED if the process
has ended. The module imports the standard library only: scripts that a guest waits for import it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is half as much to load as all the rest
    from typing import TypeVar

    _Answer = TypeVar("_Answer")

Number = tuple[int, int]  # major, minor

# A process that has open devices: its pid, its command and the devices, ``None`` if the kernel does
# not let this process see them.
Holder = tuple[int, str, Collection[Number] | None]

# The holder if /proc hides processes
HIDDEN: Holder = (1, "all processes that /proc hides by its option hidepid", None)

# The errors of files of a process that has ended
ENDED = (FileNotFoundError, ProcessLookupError)

_MOST_OF_A_FILE = 4096
# The field of /proc/PID/stat, counted after the command in brackets: proc(5), field 22.
_STARTTIME = 19

# statx(2): follow the link to the file itself, and have its file system do nothing for it. So a
# network or FUSE file system that does not answer does not stop the search.
_AT_FDCWD, _AT_NO_AUTOMOUNT, _AT_STATX_DONT_SYNC, _STATX_TYPE = -100, 0x800, 0x4000, 1
# In struct statx: stx_mode; stx_rdev_major and stx_rdev_minor
_MODE, _RDEV = (struct.Struct("=H"), 28), (struct.Struct("=II"), 128)

# kcmp(2), whose system call has no function in the C library
_KCMP_FILES = 2
_SYS_KCMP = {"x86_64": 312, "aarch64": 272, "ppc64le": 354}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.argtypes = [ctypes.c_long] * 6

# The limit for one process, whose memory may be locked by a thread that hangs in a driver
_PATIENCE_S = 2.0


def pids(proc: str) -> list[int]:
    return [int(name) for name in os.listdir(proc) if name.isdecimal()]


def hides_others(proc: str) -> bool:
    """Return whether *proc* does not list the processes of other users (its option hidepid)."""
    return 1 not in pids(proc) and os.path.lexists(f"{proc}/self")


def has_ended(fields: Mapping[str, str]) -> bool:
    """Return whether a process of this :func:`status` has no live thread, and awaits its parent."""
    return fields.get("State", "")[:1] in ("Z", "X") and fields.get("Threads") in ("0", "1")


def status(process: str) -> Mapping[str, str]:
    """Return the fields of the file ``status`` of *process*, a folder in /proc."""
    lines = (line.partition(":") for line in _text(f"{process}/status").split("\n"))
    return {name: value.strip() for name, _, value in lines}


def started(process: str) -> int:
    """Return when *process* started, in ticks since the boot."""
    return int(_text(f"{process}/stat").rpartition(")")[2].split()[_STARTTIME])


def control_groups(process: str) -> str:
    """Return the paths of the control groups of *process*, one a line."""
    return _text(f"{process}/cgroup")


def command(process: str) -> str:
    """Return the beginning of the command line of *process*, ``?`` if it has none."""
    try:
        return " ".join(arguments(process)).strip()[:80] or "?"
    except OSError:
        return "?"


def arguments(process: str) -> list[str]:
    """Return the beginning of the command line of *process*, split into its arguments."""
    return _in_time(lambda: _text(f"{process}/cmdline", _MOST_OF_A_FILE), process).split("\0")


def holders(proc: str, devices: Collection[Number]) -> Iterator[Holder]:
    """Yield the processes that have some of *devices* open, and those that may have."""
    wanted = set(devices)
    if wanted and hides_others(proc):
        yield HIDDEN
    for pid in pids(proc) if wanted else ():
        process = f"{proc}/{pid}"
        try:
            numbers = open_devices(process)
        except ENDED:
            continue
        except OSError:
            yield pid, command(process), None
        else:
            if not numbers.isdisjoint(wanted):
                yield pid, command(process), sorted(numbers & wanted)


def open_devices(process: str) -> set[Number]:
    """Return the character devices that *process* has open or has mapped.

    They are known by their numbers, however their nodes are named: a node may be mounted at another
    path, and that of a mount namespace that has ended has none. A file in the queue of a socket, or
    registered with io_uring, is not found: of a ring without a descriptor /proc shows nothing.
    """
    return _in_time(lambda: _look(process), process)


def _in_time(read: Callable[[], _Answer], process: str) -> _Answer:
    """Return what *read* returns, which may wait for the memory of *process*.

    :raises OSError: as *read*, or if it does not return
    """
    answers: list[_Answer | OSError] = []

    def run() -> None:
        try:
            answers.append(read())
        except OSError as error:
            answers.append(error)

    # The kernel lets only a signal that kills it end a read that waits for a process's memory.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    if not answers:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), process)
    if isinstance(answers[0], OSError):
        raise answers[0]
    return answers[0]


def _look(process: str) -> set[Number]:
    threads = _threads(process)
    files = (file for folder in _tables(process, threads) for file in _listed(folder))
    numbers = map(device, (*files, *_mappings(process, threads)))
    return {number for number in numbers if number}


def device(path: str) -> Number | None:
    """Return the number of the character device that *path*, a link in /proc, leads to.

    Return ``None`` for other files, and for a file that was closed meanwhile. No file system that a
    user can mount has devices that can be opened, so one that refuses an answer has none.

    :raises PermissionError: if the kernel does not let this process follow the link
    """
    flags = _AT_NO_AUTOMOUNT | _AT_STATX_DONT_SYNC
    result = ctypes.create_string_buffer(256)
    if _libc.statx(_AT_FDCWD, os.fsencode(path), flags, _STATX_TYPE, result):
        if (code := ctypes.get_errno()) == errno.EPERM:
            raise PermissionError(code, os.strerror(code), path)
        if code == errno.EACCES:
            # The kernel refuses the link itself, or a FUSE file system of another user the file.
            with contextlib.suppress(*ENDED):
                os.readlink(path)
        return None
    structure, offset = _MODE
    if not stat.S_ISCHR(*structure.unpack_from(result, offset)):
        return None
    structure, offset = _RDEV
    major, minor = structure.unpack_from(result, offset)
    return major, minor


def _threads(process: str) -> list[str]:
    """Return the ids of the threads of *process*, that of the process itself first."""
    pid = os.path.basename(process)
    try:
        names = set(os.listdir(f"{process}/task"))
    except FileNotFoundError:
        names = set()
    return [pid, *sorted(names - {pid})]


def _tables(process: str, threads: list[str]) -> Iterator[str]:
    """Yield the folders of the different tables of open files in *process*.

    A thread may have a table of its own (CLONE_FILES in unshare(2)), and if the main thread has
    ended only the others have one.
    """
    main, *others = threads
    yield f"{process}/fd"
    call = _SYS_KCMP.get(os.uname().machine, -1)
    for thread in others:
        # The kernel answers 0 if both have the same table, and -1 if it cannot tell.
        if _libc.syscall(call, int(main), int(thread), _KCMP_FILES, 0, 0) != 0:
            yield f"{process}/task/{thread}/fd"


def _mappings(process: str, threads: list[str]) -> Iterator[str]:
    """Yield a link to each file that *process* has mapped into its memory."""
    for thread in threads:
        # That of a main thread that has ended is empty. /proc has a folder for each thread, which
        # it does not list, and only there is one with the links.
        folder = f"{os.path.dirname(process)}/{thread}"
        try:
            with open(f"{folder}/maps", "rb") as file:
                lines = file.read().split(b"\n")
        except ENDED:
            continue
        # Its address, rights, offset, device, inode and path (proc(5)); inode 0 is no file.
        ranges: dict[tuple[bytes, ...], bytes] = {}
        for line in lines:
            words = line.split(None, 5)
            if len(words) > 4 and words[4] != b"0":
                ranges[tuple(words[3:])] = words[0]
        for address in ranges.values():
            yield f"{folder}/map_files/{address.decode('ascii')}"
        if ranges:
            return


def _listed(folder: str) -> list[str]:
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    except ENDED:
        return []


def _text(path: str, most: int = -1) -> str:
    with open(path, "rb") as file:
        return file.read(most).decode(errors="replace")
