# SPDX-License-Identifier: Apache-2.0
"""The consumers that have GPUs of a provider, instances and moves, and how many each has.

Placement lists them for one provider at a time, and Nova all servers page by page, with their
flavors and hosts. Where what servers have by their flavors is exactly what Placement counts as used
of a provider, these are its consumers. Else Placement is asked about that provider.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_gpu.core.flavor import query as flavor_query
from nova_gpu.core.scheduling import capacity
from osc_gpu import query, rest, servers
from osc_gpu.providers import Provider


def read(
    connection: Any, providers: Sequence[Provider], listed: Iterable[Any]
) -> list[Mapping[str, int]]:
    """Return the amounts by the consumer's uuid, for each of *providers*.

    :param connection: a :class:`osc_gpu.rest.Snapshot`
    :param listed: the servers of all projects
    :raises Refused: where Placement does not show them to the caller
    """
    used: dict[str, list[int]] = defaultdict(list)
    for number, provider in enumerate(providers):
        if provider.group.used:
            used[provider.host].append(number)
    uses: list[dict[str, int]] = [{} for _ in providers]
    for server in listed:
        if there := used.get(server.hypervisor_hostname):
            for number, count in _has(connection, server, there, providers):
                uses[number][server.id] = uses[number].get(server.id, 0) + count
    return [
        amounts if sum(amounts.values()) == provider.group.used else _asked(connection, provider)
        for provider, amounts in zip(providers, uses, strict=True)
    ]


def _has(
    connection: Any, server: Any, there: Iterable[int], providers: Sequence[Provider]
) -> Iterator[tuple[int, int]]:
    """Yield the number of a provider and the GPUs that *server* has of it, as its flavor says.

    A part that GPUs of several providers could be, or of none, is left out: the sum is another then
    than Placement's.
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


def _asked(connection: Any, provider: Provider) -> Mapping[str, int]:
    allocations = rest.of_provider(connection, provider.uuid, "allocations")
    amounts = {
        consumer: allocation["resources"].get(provider.resource_class, 0)
        for consumer, allocation in allocations.items()
    }
    return {consumer: amount for consumer, amount in amounts.items() if amount}
