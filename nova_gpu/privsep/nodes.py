# SPDX-License-Identifier: Apache-2.0
"""Privileged changes of the modes of device nodes."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

import nova_gpu.privsep.entrypoint
from nova_gpu.conf import CONF
from nova_gpu.core import device
from nova_gpu.host import nodes
from nova_gpu.host.pci import privileged_cards
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files

# The mode that a node had before a guest got it. It disappears with the node, which a boot of the
# host or the driver may create anew, and only a process with CAP_SYS_ADMIN can write it.
_FORMER_MODE = "trusted.nova-gpu.mode"


@nova_gpu.privsep.entrypoint.entrypoint
def open_to_guests(address: str, paths: list[str]) -> list[str]:
    """Let all users open those nodes in *paths* that belong to the device; return the changed ones.

    A container's users have no rights on the host's nodes, and only the group render may open many
    nodes of AMD and Intel. Nodes in *paths* that belong to another device are ignored.

    :param address: a GPU's address, or the slot of a MIG instance
    """
    roots = Roots.of(CONF.gpu)
    gpu = device.parse(address)
    if privileged_cards.card(device.function(gpu), CONF.gpu) is None:
        return []
    own = {*nodes.guest_nodes(gpu, roots), *((nodes.MODESET,) if CONF.gpu.nvidia_modeset else ())}
    return [node for node in paths if node in own and _open(node, roots)]


@nova_gpu.privsep.entrypoint.entrypoint
def opened_to_guests() -> list[str]:
    """Return the nodes that :func:`open_to_guests` has changed and that are not restored yet.

    :raises OSError: if the nodes cannot be listed
    """
    roots = Roots.of(CONF.gpu)
    opened = []
    for node in nodes.candidates(roots):
        with _opened(node, roots) as fd:
            if fd is not None and _former_mode(fd) is not None:
                opened.append(node)
    return opened


@nova_gpu.privsep.entrypoint.entrypoint
def close_to_guests(paths: list[str]) -> list[str]:
    """Restore and return those *paths* that still have the mode of :func:`open_to_guests`."""
    roots = Roots.of(CONF.gpu)
    return [node for node in paths if _close(node, roots)]


def _open(node: str, roots: Roots) -> bool:
    """Let all users open *node*; return whether its mode was changed.

    The former mode is recorded with the node. Only character devices below ``[gpu]dev_root`` are
    changed.
    """
    with _opened(node, roots) as fd:
        if fd is None:
            return False
        mode = os.fstat(fd).st_mode
        wanted = nodes.open_mode(node, mode)
        if wanted == mode:
            return False
        # If /dev has no such attributes, or this is not the host's user namespace, the node stays
        # open.
        with contextlib.suppress(OSError):
            os.setxattr(_path(fd), _FORMER_MODE, f"{stat.S_IMODE(mode):o}".encode())
        os.chmod(_path(fd), stat.S_IMODE(wanted))
    return True


def _close(node: str, roots: Roots) -> bool:
    with _opened(node, roots) as fd:
        former = None if fd is None else _former_mode(fd)
        if fd is None or former is None:
            return False
        is_as_left = stat.S_IMODE(os.fstat(fd).st_mode) == nodes.open_mode(node, former)
        if is_as_left:
            os.chmod(_path(fd), former)
        os.removexattr(_path(fd), _FORMER_MODE)
    return is_as_left


def _former_mode(fd: int) -> int | None:
    try:
        return stat.S_IMODE(int(os.getxattr(_path(fd), _FORMER_MODE), 8))
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _opened(node: str, roots: Roots) -> Iterator[int | None]:
    """Yield a descriptor of *node*, ``None`` for other files than devices below [gpu]dev_root."""
    path = nodes.on_host(node, roots)
    with contextlib.ExitStack() as stack:
        fd = None
        if path.parent.resolve().is_relative_to(roots.dev.resolve()):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                # O_PATH opens the node without calling its driver, and ensures that the checked
                # node is changed.
                fd = stack.enter_context(files.opened(path, follow=False, flags=os.O_PATH))
        yield fd if fd is not None and stat.S_ISCHR(os.fstat(fd).st_mode) else None


def _path(fd: int) -> str:
    return f"/proc/self/fd/{fd}"
