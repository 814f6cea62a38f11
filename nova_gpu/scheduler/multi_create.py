# SPDX-License-Identifier: Apache-2.0
"""The hosts that Nova has just chosen for earlier instances of the same multi-create request.

A multi-create request creates several instances at once. Nova schedules them one after another, and
counts each choice in the host states that it holds in memory for that request.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.scheduler.host_manager import HostState


def has(spec: objects.RequestSpec) -> bool:
    """Return whether the instance was created by a multi-create request.

    The result is the same in all later moves of the instance.
    """
    return "num_instances" in spec and spec.num_instances > 1


def to_create(ctxt: nova_context.RequestContext, spec: objects.RequestSpec) -> int:
    """Return how many instances the request creates; Nova creates all of them or none.

    Return 1 for a single instance and for a move. A move has no build request, because the instance
    was on a host before.
    """
    if not has(spec):
        return 1
    try:
        objects.BuildRequest.get_by_instance_uuid(ctxt, spec.instance_uuid)
    except nova_exception.BuildRequestNotFound:
        return 1
    return int(spec.num_instances)


def on(host: HostState) -> int:
    """Return for how many instances of the current request Nova has chosen *host* so far."""
    return max(int(host.num_instances) - int(host.stats.get("num_instances", 0)), 0)


def as_read(host: HostState) -> HostState:
    """Return *host* with the NUMA topology that it had before the current request.

    Nova counts the cells of the instances so far in it, which the recent choices have, too.
    """
    if not on(host):
        host.nova_gpu_topology = host.numa_topology
        return host
    before = copy.copy(host)
    before.numa_topology = getattr(host, "nova_gpu_topology", host.numa_topology)
    return before


def note_refused(hosts: Iterable[HostState]) -> None:
    """Note that Placement has refused *hosts* for an instance of the current request.

    Nova makes new host states for each request.
    """
    for host in hosts:
        host.nova_gpu_is_refused = True


def is_refused(host: HostState) -> bool:
    return getattr(host, "nova_gpu_is_refused", False)


def last_host(hosts: Iterable[HostState]) -> HostState | None:
    """Return the host that Nova has chosen for the previous instance of the current request.

    Return ``None`` for the first instance, or if that host is not in *hosts*.
    """
    return max(filter(on, hosts), key=lambda host: host.updated, default=None)
