# SPDX-License-Identifier: Apache-2.0
"""A socket that only one nova-compute process can bind, so that one process assigns a host's cards.

Two processes, each of which knows only the guests that it starts itself, would give one card to two
guests, and one would clean a card while the other starts a guest with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import struct

from nova_gpu.host.roots import Roots

LOG = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid (unix(7))
_BACKLOG = 4096
# Kept open as long as this process lives
_own: dict[str, socket.socket] = {}


def claim(roots: Roots) -> str | None:
    """Bind the socket for this host's cards; return the other process that has it (``pid 42``).

    Return ``None`` if this process has it now, or if no process of root or of the same user has it:
    any user can bind an abstract socket (unix(7)). It disappears with its process, however that
    ends, and needs no folder that both processes can write.

    :param roots: its ``sysfs`` identifies the host
    """
    name = "\0nova-gpu " + hashlib.sha256(os.fsencode(roots.sysfs.resolve())).hexdigest()
    if name in _own:
        return None
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        own.bind(name)
        own.listen(_BACKLOG)
    except OSError as error:
        own.close()
        holder = _holder(name)
        if holder is None:
            LOG.error(
                "Cannot tell whether another nova-compute offers the same GPUs, so this one offers "
                "them: %s",
                error,
            )
        return holder
    _own[name] = own
    return None


def _holder(name: str) -> str | None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        client.connect(name)
        answer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(answer)
        if uid in (0, os.geteuid()):
            return f"pid {pid}"
        LOG.error(
            "A process of user %d (pid %d) claims to be the nova-compute of this host's GPUs; it "
            "is ignored, because that user is neither root nor nova-compute's",
            uid,
            pid,
        )
    return None
