# SPDX-License-Identifier: Apache-2.0
"""Reads files that ought to be small and regular, and may be anything."""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
from collections.abc import Iterator

# What a file of ours or of a vendor's tools has is a few KiB.
LARGEST = 1 << 20


@contextlib.contextmanager
def opened(
    path: str | pathlib.Path, *, dir_fd: int | None = None, follow: bool = True
) -> Iterator[int]:
    """A descriptor for reading *path*, also where that is a pipe without a writer or a folder.

    :param follow: open what a link leads to; else a link is an error
    :raises OSError: where it cannot be opened
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def text(fd: int, largest: int = LARGEST) -> str:
    """What the file *fd* has, which must not be more than *largest* bytes of UTF-8.

    :raises OSError: where it cannot be read
    :raises ValueError: where it is something else, with the reason
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
    """:func:`text` of the file at *path*.

    :raises OSError, ValueError: as those
    """
    with opened(path) as fd:
        return text(fd, largest)
