# SPDX-License-Identifier: Apache-2.0
"""Unmounts device nodes in a running container: a script, run by
:mod:`nova_gpu.host.container.guest_mounts`.

Its only argument is one JSON object, the process with which libvirt started the container and the
nodes as the container names them::

    {"controller": 4710, "nodes": ["/dev/nvidia0", ...]}

From when it is in the container's mount namespace on it opens no file and runs no program: those
there are the guest's. It ends with a message where a node is still mounted.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CONTROLLER = "libvirt_lxc"
# <sys/mount.h>
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
# The guest may have mounted something over them, and does not keep anybody busy with that.
_MOST = 16


def _read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def _init(controller: int) -> int:
    """The container's first process, the only child of its controller that is in another mount
    namespace.

    :raises SystemExit: where the process is no container's controller
    """
    folder = f"/proc/{controller}"
    if _read(f"{folder}/comm") != _CONTROLLER:
        raise SystemExit(f"the process {controller} is none of {_CONTROLLER}")
    own = {os.readlink(f"{each}/ns/mnt") for each in ("/proc/self", folder)}
    children = _read(f"{folder}/task/{controller}/children").split()
    found = [pid for pid in children if os.readlink(f"/proc/{pid}/ns/mnt") not in own]
    if len(found) != 1:
        raise SystemExit(f"the container of the process {controller} has no first process")
    return int(found[0])


def main(request: dict[str, Any]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    nodes = [os.fsencode(node) for node in request["nodes"]]
    with open(f"/proc/{_init(request['controller'])}/ns/mnt") as namespace:
        if libc.setns(namespace.fileno(), 0):
            raise SystemExit(f"setns: {os.strerror(ctypes.get_errno())}")
    for node in nodes:
        number = 0
        for _ in range(_MOST):
            if libc.umount2(node, _MNT_DETACH | _UMOUNT_NOFOLLOW):
                number = ctypes.get_errno()
                break
        # It is no mount any more, or not there.
        if number not in (errno.EINVAL, errno.ENOENT):
            why = os.strerror(number) if number else f"mounted more than {_MOST} times"
            raise SystemExit(f"{os.fsdecode(node)}: {why}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
