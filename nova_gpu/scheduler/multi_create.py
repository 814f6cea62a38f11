# SPDX-License-Identifier: Apache-2.0
"""The hosts that Nova has just chosen for earlier instances of the same multi-create request.

Nova schedules the instances one after another, and counts each choice in the host states that it
holds in memory for that request.
"""

from __future__ import annotations

from collections.abc import Iterable

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.scheduler.host_manager import HostState


def has(spec: objects.RequestSpec) -> bool:
    """Return whether the instance was created together with others.

    The result stays the same in all later moves of the instance.
    """
    return "num_instances" in spec and spec.num_instances > 1


def to_create(ctxt: nova_context.RequestContext, spec: objects.RequestSpec) -> int:
    """Return how many instances Nova creates together by this request, all or none.

    Return 1 for a move: the instance was on a host before, so Nova has no build request for it.
    """
    if not has(spec):
        return 1
    try:
        objects.BuildRequest.get_by_instance_uuid(ctxt, spec.instance_uuid)
    except nova_exception.BuildRequestNotFound:
        return 1
    return int(spec.num_instances)


def on(host: HostState) -> int:
    """Return how many instances of the current request Nova has placed on *host*."""
    return max(int(host.num_instances) - int(host.stats.get("num_instances", 0)), 0)


def last_host(hosts: Iterable[HostState]) -> HostState | None:
    """Return the host on which Nova has placed the previous instance of the current request.

    Return ``None`` for the first instance.
    """
    return max(filter(on, hosts), key=lambda host: host.updated, default=None)
