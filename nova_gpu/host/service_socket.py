# SPDX-License-Identifier: Apache-2.0
"""A socket that each nova-compute process binds, so that one process assigns a host's cards.

Two processes, each of which knows only the guests that it starts itself, would give one card to two
guests, and one would clean a card while the other starts a guest with it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import secrets
import socket
import struct
from collections.abc import Iterator
from typing import IO

from nova_gpu.host import processes
from nova_gpu.host.roots import Roots

LOG = logging.getLogger(__name__)

_PROC = "/proc"  # of the kernel that has the sockets, even if [gpu]proc_root is another

# linux/netlink.h, linux/sock_diag.h and linux/unix_diag.h. UNIX_DIAG_UID has been there since 5.3.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_AND_DUMP, _ERROR, _DONE = 0x301, 2, 3
_HEADER, _REQUEST = struct.Struct("=IHHII"), struct.Struct("=BBHIIIII")
_FOUND, _ATTRIBUTE, _NUMBER = struct.Struct("=BBBBIII"), struct.Struct("=HH"), struct.Struct("=I")
_NAME, _UID = 0, 7
_SHOWN = 1 << 0 | 1 << 6  # UDIAG_SHOW_NAME and UDIAG_SHOW_UID
_ANY = 0xFFFFFFFF

# Kept open as long as this process lives: the socket, and a file in memory of the same name
_own: dict[bytes, tuple[socket.socket, IO[bytes]]] = {}


def claim(roots: Roots) -> str | None:
    """Bind a socket for this host's cards; return another process that has one (``pid 42``).

    Return ``None`` if no other process of root or of the same user has one. The name ends in a
    random number, and the kernel tells the user of each socket (sock_diag(7)): any user can bind an
    abstract socket (unix(7)), so that a name alone, or who answers at it, is no evidence. A socket
    disappears with its process, however that ends, and needs no folder that both can write.

    Where the kernel does not list its sockets, what processes of the same user have open tells.

    :param roots: its ``sysfs`` identifies the host
    :raises OSError: if the kernel shows neither
    """
    host = hashlib.sha256(os.fsencode(roots.sysfs.resolve())).hexdigest()
    text = f"nova-gpu {host}"
    prefix = f"\0{text}".encode()
    if prefix in _own:
        return None
    name = b"%s %d %s" % (prefix, os.getpid(), secrets.token_hex(8).encode())
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(os.fdopen(os.memfd_create(text), "wb"))
        own = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        own.bind(name)
        try:
            other = _socket_of_another(prefix, name)
        except OSError as error:
            LOG.warning("The kernel does not list its sockets (sock_diag): %s", error)
            other = _file_of_another(text)
        if other is None:
            stack.pop_all()
            _own[prefix] = own, file
        return other


def _socket_of_another(prefix: bytes, own: bytes) -> str | None:
    for name, uid in _sockets():
        if name.startswith(prefix) and name != own and uid in (0, os.geteuid()):
            # The former release bound the prefix alone.
            number, *_ = [*name.removeprefix(prefix).split(), b"unknown"]
            return f"pid {number.decode(errors='replace')}"
    return None


def _file_of_another(text: str) -> str | None:
    """Return another process of root or of the same user that has a file in memory named *text*.

    The kernel lets a process read what others of its user have open, and root what all have. A
    network namespace does not matter.
    """
    link = f"/memfd:{text} (deleted)"
    for pid in processes.pids(_PROC):
        process = f"{_PROC}/{pid}"
        with contextlib.suppress(*processes.ENDED, PermissionError):
            if pid == os.getpid() or os.stat(process).st_uid not in (0, os.geteuid()):
                continue
            for file in os.listdir(f"{process}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    if os.readlink(f"{process}/fd/{file}") == link:
                        return f"pid {pid}"
    return None


def _sockets() -> Iterator[tuple[bytes, int]]:
    """Yield the name of each UNIX socket of this network namespace that has one, and its user.

    :raises OSError: if the kernel does not tell
    """
    request = _REQUEST.pack(socket.AF_UNIX, 0, 0, _ANY, 0, _SHOWN, 0, 0)
    header = _HEADER.pack(
        _HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_AND_DUMP, 1, 0
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.send(header + request)
        while True:
            answer = kernel.recv(1 << 18)
            while answer:
                length, kind, *_ = _HEADER.unpack_from(answer)
                body, answer = answer[_HEADER.size : length], answer[_aligned(length) :]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    (number,) = struct.unpack_from("=i", body)
                    raise OSError(-number, os.strerror(-number))
                attributes = dict(_attributes(body[_FOUND.size :]))
                if _NAME in attributes:
                    if _UID not in attributes:
                        raise OSError(errno.EOPNOTSUPP, "the kernel is older than 5.3")
                    yield attributes[_NAME], _NUMBER.unpack(attributes[_UID])[0]


def _attributes(text: bytes) -> Iterator[tuple[int, bytes]]:
    while text:
        length, kind = _ATTRIBUTE.unpack_from(text)
        yield kind, text[_ATTRIBUTE.size : length]
        text = text[_aligned(length) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3
