# SPDX-License-Identifier: Apache-2.0
"""Reading of files that may be large, foreign or unreadable, and writing of nova-gpu's own files.

A file is read completely or not at all. It is written under a temporary name and renamed when it is
on disk: after a power failure the old file or the new one exists.
doc/source/contributor/state.rst lists nova-gpu's files and their purpose.

A *trusted* file is read only if no user but root and the process's own could have written it. The
state path belongs to the user nova, so root's processes refuse a file that nova put there.

Each function raises OSError if the system refuses it, and Untrusted for a file, or a file in a
folder, that another user can change.

"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import Any

from nova_gpu.core import exception, json_text
from nova_gpu.core.model import PciAddress

# Files of ours and of vendors' tools have a few KiB.
LARGEST = 1 << 20
_SUFFIX = ".json"
_ROOT_GID = 0


class Untrusted(Exception):
    """The reason why a file or folder is not trusted: another user could have written it."""


@contextlib.contextmanager
def opened(
    path: str | pathlib.Path, *, dir_fd: int | None = None, follow: bool = True, flags: int = 0
) -> Iterator[int]:
    """Yield a descriptor for reading the file or folder at *path*.

    It does not block, not even at a pipe that no process writes to.

    :param follow: whether to open the target of a symbolic link, which is an error otherwise
    :param flags: further flags of :func:`os.open`
    """
    flags |= os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def text(fd: int, largest: int = LARGEST) -> str:
    """Return the whole text of the open file *fd*.

    :raises ValueError: if it is no regular file, has more than *largest* bytes or is not UTF-8
    """
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise ValueError("it is not a regular file")
    content = b""
    while len(content) <= largest:
        part = os.read(fd, largest + 1 - len(content))
        if not part:
            return content.decode()
        content += part
    raise ValueError(f"it has more than {largest} bytes")


def read(path: str | pathlib.Path, largest: int = LARGEST) -> str:
    """Return the whole text of the file at *path*; raise as :func:`text`."""
    with opened(path) as fd:
        return text(fd, largest)


def believe(path: pathlib.Path, status: os.stat_result) -> None:
    """Raise Untrusted if other users could have written the file or folder with this *status*."""
    if reason := distrust(status, os.geteuid()):
        raise Untrusted(f"{path} is not trusted: {reason}")


def distrust(status: os.stat_result, owner_uid: int) -> str | None:
    """Return which other users can change the file or folder with *status*, ``None`` if none can.

    Only the user *owner_uid* may own it, and only that user and the group root may write to it.
    """
    if status.st_uid != owner_uid:
        return f"its owner is uid {status.st_uid} and must be uid {owner_uid}"
    if status.st_mode & stat.S_IWOTH:
        return f"all users can write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    if status.st_mode & stat.S_IWGRP and status.st_gid != _ROOT_GID:
        return f"the group {status.st_gid} can write to it"
    return None


def read_json(path: pathlib.Path, *, trusted: bool = False) -> Any:
    """Return the value in the JSON file at *path*, which must not be a symbolic link.

    :raises OSError: if it cannot be read; FileNotFoundError if it does not exist
    :raises ValueError: if it is not a regular file, or not JSON
    :raises Untrusted: with *trusted*, if another user could have written it
    """
    with _believed(path.parent) if trusted else contextlib.nullcontext() as folder:
        name = path if folder is None else path.name
        with opened(name, dir_fd=folder, follow=False) as fd:
            if trusted:
                believe(path, os.fstat(fd))
            content = text(fd)
    return json_text.parse(content)


def write_json(
    path: pathlib.Path,
    content: Any,
    *,
    mode: int | None = None,
    indent: int | None = None,
    trusted: bool = False,
    durable: bool = True,
) -> None:
    """Write *content* as JSON to the file at *path*, by :func:`write`."""
    text = json.dumps(content, indent=indent)
    write(path, text.encode(), mode=mode, trusted=trusted, durable=durable)


def write(
    path: pathlib.Path,
    content: bytes,
    *,
    mode: int | None = None,
    trusted: bool = False,
    durable: bool = True,
) -> None:
    """Write *content* to the file at *path*, whose former content stays after a failure.

    The folder must exist.

    :param mode: the permissions of the file; by default 0666 without the umask
    :param durable: whether to wait for the disk, so that a power failure loses nothing
    """
    # An ending that no program reads: some of these files lie among those of other programs.
    draft = f".{path.name}.nova-gpu"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with _folder(path.parent, trusted=trusted) as folder:
        fd = os.open(draft, flags, 0o666 if mode is None else mode, dir_fd=folder)
        with os.fdopen(fd, "wb") as file:
            if mode is not None:
                os.fchmod(fd, mode)
            file.write(content)
            file.flush()
            if durable:
                os.fsync(fd)
        os.rename(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        if durable:
            os.fsync(folder)  # the name as well is to be found after a power failure


def remove(path: pathlib.Path, *, trusted: bool = False) -> None:
    """Remove the file at *path*, if it exists."""
    with contextlib.suppress(FileNotFoundError), _folder(path.parent, trusted=trusted) as folder:
        os.unlink(path.name, dir_fd=folder)
        os.fsync(folder)


def names(folder: pathlib.Path) -> list[str]:
    """Return the names of the files in *folder*, sorted; an empty list if it does not exist."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except FileNotFoundError:
        return []


def of_card(folder: pathlib.Path, card: PciAddress) -> pathlib.Path:
    return folder / f"{card}{_SUFFIX}"


def cards(folder: pathlib.Path) -> list[PciAddress]:
    """Return the cards that have a file in *folder*, whose other files are ignored."""
    addresses = []
    for name in names(folder):
        with contextlib.suppress(exception.InvalidPciAddress):
            addresses.append(PciAddress.parse(name.removesuffix(_SUFFIX)))
    return addresses


def _folder(folder: pathlib.Path, *, trusted: bool) -> contextlib.AbstractContextManager[int]:
    return _believed(folder) if trusted else opened(folder, flags=os.O_DIRECTORY)


@contextlib.contextmanager
def _believed(folder: pathlib.Path) -> Iterator[int]:
    """Yield a descriptor of *folder*, which must be no link, and no other user can change."""
    with contextlib.ExitStack() as stack:
        try:
            fd = stack.enter_context(opened(folder, follow=False, flags=os.O_DIRECTORY))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Untrusted(f"{folder} is not a folder: {error.strerror}") from error
        believe(folder, os.fstat(fd))
        yield fd
