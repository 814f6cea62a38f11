# SPDX-License-Identifier: Apache-2.0
"""The hosts that Nova has just chosen for earlier instances of the same request.

It schedules them one after another, with the hosts that it has in memory for that request alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.scheduler.host_manager import HostState


def has(spec: objects.RequestSpec) -> bool:
    """Return whether the instance was created together with others.

    It stays so in all its moves.
    """
    return "num_instances" in spec and spec.num_instances > 1


def to_create(ctxt: nova_context.RequestContext, spec: objects.RequestSpec) -> int:
    """Return how many instances Nova creates together by this request, all or none.

    One for a move: its instance was on a host, so that Nova has no build request of it.
    """
    if not has(spec):
        return 1
    try:
        objects.BuildRequest.get_by_instance_uuid(ctxt, spec.instance_uuid)
    except nova_exception.BuildRequestNotFound:
        return 1
    return int(spec.num_instances)


def on(host: HostState) -> int:
    """Return how many of these instances Nova has put on *host*."""
    return max(int(host.num_instances) - int(host.stats.get("num_instances", 0)), 0)


def last_host(hosts: Iterable[HostState]) -> HostState | None:
    """Return the host on which Nova has put the last of these instances.

    ``None`` before the first.
    """
    return max(filter(on, hosts), key=lambda host: host.updated, default=None)
