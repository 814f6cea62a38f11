# SPDX-License-Identifier: Apache-2.0
"""Reading of arbitrary files, and reading and writing of this project's own state files.

A state file is one JSON object or one text, and is read completely or not at all. It is written
under a temporary name and renamed when it is on disk: after a power failure the old file or the new
one exists. doc/source/contributor/state.rst lists the files and their purpose.

A *trusted* file, which only root may write, is read only if no other user could have written it.
The state path belongs to nova, so a file that nova put in the place of root's is refused.
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
    """A folder or file that users other than root could have written, with the reason."""


@contextlib.contextmanager
def opened(
    path: str | pathlib.Path, *, dir_fd: int | None = None, follow: bool = True, flags: int = 0
) -> Iterator[int]:
    """Yield a descriptor for reading *path*, which may also be a folder or a pipe without a writer.

    :param follow: open the target of a link; otherwise a link is an error
    :param flags: further flags of :func:`os.open`
    :raises OSError: if it cannot be opened
    """
    flags |= os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def text(fd: int, largest: int = LARGEST) -> str:
    """Return the content of the open file *fd*, at most *largest* bytes of UTF-8.

    :raises OSError: if it cannot be read
    :raises ValueError: if it is no regular file, too large or not UTF-8
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
    """Return the content of the file at *path*, as :func:`text` does.

    :raises OSError, ValueError: as :func:`text`
    """
    with opened(path) as fd:
        return text(fd, largest)


def believe(path: pathlib.Path, status: os.stat_result) -> None:
    """Check who could have written the file or folder at *path*.

    :raises Untrusted: if a user other than this process's and root could
    """
    if reason := distrust(status, os.geteuid()):
        raise Untrusted(f"{path} is not trusted: {reason}")


def distrust(status: os.stat_result, owner_uid: int) -> str | None:
    """Return why a file or folder with *status* is refused, or ``None``.

    Only *owner_uid* and the group of root may be able to change it.
    """
    if status.st_uid != owner_uid:
        return f"its owner is uid {status.st_uid} and must be uid {owner_uid}"
    if status.st_mode & stat.S_IWOTH:
        return f"all users can write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    if status.st_mode & stat.S_IWGRP and status.st_gid != _ROOT_GID:
        return f"the group {status.st_gid} can write to it"
    return None


def read_json(path: pathlib.Path, *, trusted: bool = False) -> Any:
    """Return the content of the JSON file at *path*. Links are not followed.

    :raises OSError: if it cannot be read; FileNotFoundError if it does not exist
    :raises ValueError: if it is not a file, or not JSON
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
) -> None:
    """Write *content* as JSON to the file at *path*, by :func:`write`."""
    write(path, json.dumps(content, indent=indent).encode(), mode=mode, trusted=trusted)


def write(
    path: pathlib.Path, content: bytes, *, mode: int | None = None, trusted: bool = False
) -> None:
    """Replace the file at *path* completely or not at all. Its folder must exist.

    :param mode: the mode of the file; by default what the umask leaves
    :raises OSError: if it cannot be written
    :raises Untrusted: with *trusted*, if another user could change it
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
            os.fsync(fd)
        os.rename(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)  # the name as well is to be found after a power failure


def remove(path: pathlib.Path, *, trusted: bool = False) -> None:
    """Remove the file at *path*, if it exists.

    :raises OSError: if it cannot be removed
    :raises Untrusted: with *trusted*, if another user could change its folder
    """
    with (
        contextlib.suppress(FileNotFoundError),
        _folder(path.parent, trusted=trusted) as folder,
    ):
        os.unlink(path.name, dir_fd=folder)
        os.fsync(folder)


def names(folder: pathlib.Path) -> list[str]:
    """Return the names of the files in *folder*, sorted; an empty list if it does not exist.

    :raises OSError: if it cannot be listed
    """
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except FileNotFoundError:
        return []


def of_card(folder: pathlib.Path, card: PciAddress) -> pathlib.Path:
    """Return the path of the file about *card*, in a folder with one file for each card."""
    return folder / f"{card}{_SUFFIX}"


def cards(folder: pathlib.Path) -> list[PciAddress]:
    """Return the cards that have a file in *folder*. Files with other names are skipped.

    :raises OSError: if it cannot be listed
    """
    addresses = []
    for name in names(folder):
        with contextlib.suppress(exception.InvalidPciAddress):
            addresses.append(PciAddress.parse(name.removesuffix(_SUFFIX)))
    return addresses


def _folder(folder: pathlib.Path, *, trusted: bool) -> contextlib.AbstractContextManager[int]:
    return _believed(folder) if trusted else opened(folder, flags=os.O_DIRECTORY)


@contextlib.contextmanager
def _believed(folder: pathlib.Path) -> Iterator[int]:
    """Yield a descriptor of *folder*, which only its owner can change.

    :raises FileNotFoundError: if it does not exist
    :raises Untrusted: if it is a link, or another user could change it
    """
    with contextlib.ExitStack() as stack:
        try:
            fd = stack.enter_context(opened(folder, follow=False, flags=os.O_DIRECTORY))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Untrusted(f"{folder} is not a folder: {error.strerror}") from error
        believe(folder, os.fstat(fd))
        yield fd
