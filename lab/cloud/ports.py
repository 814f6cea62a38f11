# SPDX-License-Identifier: Apache-2.0
"""Finds which processes listen on TCP ports that the lab needs."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterable

from lab.cloud import leftovers

_LISTEN = "0A"  # include/net/tcp_states.h


def _listening_inodes(table: str) -> dict[str, int]:
    """Return the port of each listening socket, by the socket's inode number.

    :param table: the text of /proc/net/tcp or tcp6, whose format is in the kernel's
        proc_net_tcp.rst
    """
    inodes = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[3] == _LISTEN:
            inodes[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return inodes


def listeners(
    ports: Iterable[int], proc: pathlib.Path = pathlib.Path("/proc")
) -> dict[int, leftovers.Process | None]:
    """Return the process that listens on each of *ports*; ports without one are left out.

    It is ``None`` if it cannot be seen, for example because it is in another container.
    """
    wanted = set(ports)
    port_by_inode: dict[str, int] = {}
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            port_by_inode |= _listening_inodes((proc / table).read_text())
    processes: dict[int, leftovers.Process | None] = {
        port: None for port in sorted(port_by_inode.values()) if port in wanted
    }
    if not processes:
        return processes
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for descriptor in (entry / "fd").iterdir():
                target = os.readlink(descriptor)
                port = port_by_inode.get(target.removeprefix("socket:[").removesuffix("]"))
                if port in processes:
                    pid = int(entry.name)
                    processes[port] = leftovers.Process(pid, leftovers.command(pid, proc))
    return processes


def taken(port_by_service: dict[str, int], proc: pathlib.Path = pathlib.Path("/proc")) -> list[str]:
    """Return a sentence for each service on whose port a process listens already."""
    present = listeners(port_by_service.values(), proc)
    return [
        f"port {port}, which {service} needs, is taken by "
        + (str(present[port]) if present[port] else "a process that cannot be seen from here")
        for service, port in port_by_service.items()
        if port in present
    ]
