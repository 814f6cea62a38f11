# SPDX-License-Identifier: Apache-2.0
"""The configuration space of a PCI function and its lists of capabilities.

The kernel shows all of it to root, and the first 64 bytes to other users (pci_read_config in its
drivers/pci/pci-sysfs.c).
"""

from __future__ import annotations

import errno
import os
import struct

# include/uapi/linux/pci_regs.h
_STATUS, _CAPABILITIES_FLAG, _CAPABILITIES = 0x06, 0x10, 0x34
_HEADER, _EXTENDED, _END = 0x40, 0x100, 0x1000
_ALL_ONES = 0xFFFFFFFF


def read(device: str) -> bytes:
    """Return the whole configuration space: 4096 bytes, or 256 of a function without more.

    :raises PermissionError: if only root can read all of it
    :raises OSError: if it cannot be read, or the function does not answer
    """
    path = f"{device}/config"
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        config = file.read(_END)
    if len(config) < max(size, _HEADER):
        raise PermissionError(errno.EACCES, "only root can read all of it", path)
    if _word(config, 0) == _ALL_ONES:
        raise OSError(errno.EIO, "the function does not answer", path)
    return config


def capability(config: bytes, number: int) -> int | None:
    """Return the offset of the capability *number*, ``None`` if the function lacks it."""
    if not _word(config, _STATUS) & _CAPABILITIES_FLAG:
        return None
    offset, seen = config[_CAPABILITIES] & ~3, set[int]()
    while _HEADER <= offset < min(_EXTENDED, len(config) - 3) and offset not in seen:
        seen.add(offset)
        if config[offset] == number:
            return offset
        offset = config[offset + 1] & ~3
    return None


def extended_capability(config: bytes, number: int) -> int | None:
    """Return the offset of the extended capability *number*, ``None`` if the function lacks it."""
    offset, seen = _EXTENDED, set[int]()
    while _EXTENDED <= offset <= len(config) - 12 and offset not in seen:
        seen.add(offset)
        header = _word(config, offset)
        if header in (0, _ALL_ONES):
            return None
        if header & 0xFFFF == number:
            return offset
        offset = header >> 20 & ~3
    return None


def _word(config: bytes, offset: int) -> int:
    (value,) = struct.unpack_from("<I", config, offset)
    return int(value)
