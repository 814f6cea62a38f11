# SPDX-License-Identifier: Apache-2.0
"""The hosts that Nova has just chosen for earlier instances of the same request.

It schedules them one after another, with the hosts that it has in memory for that request alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from nova import objects
from nova.scheduler.host_manager import HostState


def has(spec: objects.RequestSpec) -> bool:
    """Return whether the instance was created together with others.

    It stays so in all its moves.
    """
    return "num_instances" in spec and spec.num_instances > 1


def on(host: HostState) -> int:
    """Return how many of these instances Nova has put on *host*."""
    return max(int(host.num_instances) - int(host.stats.get("num_instances", 0)), 0)


def last_host(hosts: Iterable[HostState]) -> HostState | None:
    """Return the host on which Nova has put the last of these instances.

    ``None`` before the first.
    """
    return max(filter(on, hosts), key=lambda host: host.updated, default=None)
