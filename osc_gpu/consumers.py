# SPDX-License-Identifier: Apache-2.0
"""How many GPUs of each provider its consumers have: instances, and migrations in progress.

Placement lists consumers for one provider at a time; Nova lists all servers in pages, with their
flavors and hosts. If the flavors of a provider's servers add up to exactly what Placement counts as
used, these servers are its consumers. Otherwise Placement is queried for that provider.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_gpu.core.flavor import query as flavor_query
from nova_gpu.core.scheduling import capacity
from osc_gpu import hosts, query, rest, servers
from osc_gpu.group_list import Provider


def read(
    connection: rest.CachedConnection, providers: Sequence[Provider], listed: Iterable[Any]
) -> list[Mapping[str, int]]:
    """Return, for each of *providers*, the number of its GPUs by the consumer's uuid.

    :param listed: the servers of all projects
    """
    used: dict[str, list[int]] = defaultdict(list)
    for number, provider in enumerate(providers):
        if provider.group.used:
            used[provider.host].append(number)
    uses: list[dict[str, int]] = [{} for _ in providers]
    for server in listed:
        if there := used.get(server.hypervisor_hostname):
            for number, count in _by_flavor(connection, server, there, providers):
                uses[number][server.id] = uses[number].get(server.id, 0) + count
    return [
        amounts
        if sum(amounts.values()) == provider.group.used
        else _allocated(connection, provider)
        for provider, amounts in zip(providers, uses, strict=True)
    ]


def _by_flavor(
    connection: Any, server: Any, there: Iterable[int], providers: Sequence[Provider]
) -> Iterator[tuple[int, int]]:
    """Yield the index of a provider and the number of its GPUs that *server* has by its flavor.

    A request that several providers could serve, or none, is left out; the sum then differs from
    Placement's.

    :param there: the indexes of the providers on the server's host
    """
    if server.task_state or server.status == "ERROR" or servers.gave_back(server):
        return
    for request in servers.requests_of(server):
        known = query.known_traits(connection) if flavor_query.needs_known(request) else ()
        for part in flavor_query.resolved(request, known) or ():
            fitting = [
                number
                for number in there
                if providers[number].resource_class == request.resource_class
                and capacity.fits(part, providers[number].group)
            ]
            if len(fitting) == 1:
                yield fitting[0], part.count


def moving(connection: rest.CachedConnection, consumer: str, node: str) -> str | None:
    """Return the uuid of the server that migrates from *node*, ``None`` without such a migration.

    Until a migration is finished, it is the consumer of the GPUs on the source. Nova keeps all
    migrations that ever were, so those from this node alone are read.
    """
    host = hosts.services(connection).get(node, node)
    with rest.clean_refusals("Nova"):
        migrations = connection.compute.migrations(source_compute=host)
    return next((item.server_id for item in migrations if item.uuid == consumer), None)


def _allocated(connection: Any, provider: Provider) -> Mapping[str, int]:
    allocations = rest.of_provider(connection, provider.uuid, "allocations")
    amounts = {
        consumer: allocation["resources"].get(provider.resource_class, 0)
        for consumer, allocation in allocations.items()
    }
    return {consumer: amount for consumer, amount in amounts.items() if amount}
