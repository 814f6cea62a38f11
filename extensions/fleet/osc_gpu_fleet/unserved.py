# SPDX-License-Identifier: Apache-2.0
"""Unserved requests: servers that found no host with free GPUs at their creation or start."""

from __future__ import annotations

import dataclasses
import datetime
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from openstack import exceptions as sdk_exc

from nova_gpu.core import exception
from nova_gpu_fleet.core.preemptible import is_preemptible
from osc_gpu import failures, rest, servers
from osc_gpu_fleet import last_action

_STOPPED, _OFFLOADED = "SHUTOFF", "SHELVED_OFFLOADED"
# In the fault if a request filter found that no host has the GPUs, and in that if other requests
# took them first
_REFUSED = ("Scheduling failed: ", failures.NOT_ENOUGH_HOSTS)
# The number of uuids, with commas, that fit into the 255 characters of a metadata value
_RECORDED = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Unserved:
    """Servers of one flavor that found no GPUs, the oldest first.

    ``zone`` is the availability zone that they require, or empty. ``host`` is the node where they
    are stopped, which has all resources for them except GPUs; empty for servers without a host.
    ``from_volume``: whether their root disks are volumes.
    """

    flavor: Any
    zone: str
    host: str
    from_volume: bool
    servers: tuple[Any, ...]

    @property
    def in_short(self) -> str:
        first, *others = self.servers
        return f"{first.name} and {len(others)} more" if others else str(first.name)

    @property
    def uuids(self) -> str:
        """The uuids of the oldest servers, joined by commas, as many as fit a metadata value."""
        return ",".join(server.id for server in self.servers[:_RECORDED])

    @property
    def in_words(self) -> str:
        who = [
            f"{server.name} ({server.id}) of project {server.project_id}" for server in self.servers
        ]
        return f"{self.flavor.name}, asked for by {', '.join(who)}"


def read(
    connection: rest.CachedConnection,
    since: datetime.datetime,
    holders: Callable[[], Collection[str]],
) -> list[Unserved]:
    """Return the requests made after *since* that got no GPUs, the oldest first.

    They are new servers, and starts and unshelves of servers that released their GPUs, none of them
    preemptible. Nova cannot retry a new server, so its user creates another: a server is left out
    if a newer server of its project and flavor has its name, or was created in its place.

    :param since: in UTC
    :param holders: returns the uuids of all servers that have GPUs in Placement by now
    """
    with rest.clean_refusals("Nova"):
        listed = connection.compute.servers(details=True, all_projects=True)
    alike: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for server in listed:
        request = servers.request_of(server)
        if servers.requests_of(server) and not is_preemptible(request.extra_specs):
            specs = tuple(sorted(request.extra_specs.items()))
            alike[server.project_id, server.flavor.name, specs].append(server)
    earliest = since.isoformat()
    servers_by_request: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for (_, name, specs), group in alike.items():
        recent = [server for server in group if server.created_at > earliest]
        unserved = list(_unreplaced(connection, recent, holders))
        unserved += [server for server in group if _failed_to_start(connection, server, earliest)]
        for server in unserved:
            host = server.hypervisor_hostname if server.status == _STOPPED else ""
            volume = servers.boots_from_volume(server)
            key = (name, specs, server.availability_zone or "", host, volume)
            servers_by_request[key].append(server)
    made = [
        Unserved(item[0].flavor, zone, host, volume, tuple(sorted(item, key=_age)))
        for (_, _, zone, host, volume), item in servers_by_request.items()
    ]
    return sorted(made, key=lambda need: _age(need.servers[0]))


def found_none(connection: Any, server: Any) -> bool:
    """Return whether Nova shows that a new server failed because no host had free GPUs for it."""
    if server.status != "ERROR" or server.compute_host:
        return False
    fault = (server.fault or _fault(connection, server) or {}).get("message", "")
    if exception.QUOTA_REFUSES in fault:
        return False  # free GPUs would not help it
    return exception.FINAL not in fault and any(message in fault for message in _REFUSED)


def _fault(connection: Any, server: Any) -> Any:
    """Return the fault of a server whose listing had none, or ``None``.

    The lists of servers of Nova 2024.1 to 2025.1 lack the fault of a server that found no host.
    """
    with rest.clean_refusals("Nova"):
        try:
            return connection.compute.get_server(server.id).fault
        except sdk_exc.NotFoundException:  # deleted since it was listed
            return None


def _failed_to_start(connection: Any, server: Any, earliest: str) -> bool:
    """Return whether the server's newest action was a start or unshelve that got no GPUs.

    The server must still be stopped or shelved. Nova shows no failure for an unshelve that found no
    host.

    :param earliest: the time in UTC, as text, before which actions do not count
    """
    if server.status not in (_STOPPED, _OFFLOADED) or server.task_state:
        return False
    if (server.updated_at or "") < earliest:
        return False  # and is not asked about
    last = last_action.last(connection, server)
    if last is None or last.start_time < earliest:
        return False
    if server.status == _OFFLOADED:
        return bool(last.action == "unshelve")
    details = failures.details(connection, server, last) if last.action == "start" else ()
    return any(exception.GAVE_BACK in detail for detail in details)


def _unreplaced(
    connection: Any, alike: Iterable[Any], holders: Callable[[], Collection[str]]
) -> Iterator[Any]:
    """Yield the servers that found no host and that no newer server replaces, the newest first.

    :param alike: servers of one project and flavor
    """
    names, served = set(), 0
    for server in sorted(alike, key=_age, reverse=True):
        if server.status == "BUILD" and not server.compute_host and server.id not in holders():
            continue  # older servers may be replaced by it, which its build will show
        if server.compute_host or server.status != "ERROR":
            served += 1
        elif server.name not in names and found_none(connection, server):
            if not served:
                yield server
            served = max(served - 1, 0)
        names.add(server.name)


def _age(server: Any) -> tuple[str, str]:
    return server.created_at, server.id
