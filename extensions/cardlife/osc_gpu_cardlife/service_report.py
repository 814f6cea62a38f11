# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu service report``: the GPUs that each project was given, and which of them work.

The columns are those that NVIDIA's requirements for AI clouds ask for (CAP01). A project's own
hosts are those of aggregates with its ID in ``filter_tenant_id``, by which Nova's scheduler keeps
other projects away.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from oslo_utils import timeutils

from nova_gpu.core import names
from osc_gpu import base_command, group_list, hosts, projects, rest, usage
from osc_gpu.group_list import Provider
from osc_gpu.usage import UsageRecord
from osc_gpu_cardlife import maintenance
from osc_gpu_cardlife.maintenance import UNKNOWN, Window

_COLUMNS = (
    *("Project", "Resource Class", "Delivered", "Healthy", "Reserved", "In Use"),
    *("Out of Service", "Maintenance"),
)
_TENANTS = "filter_tenant_id"
# The row of what no project has
NO_PROJECT = ""
_RESERVED = "reserved: failed, in quarantine, being tested, or used by guests that are not Nova's"
_WHOSE = "; of which project is not known"


@dataclasses.dataclass(frozen=True, slots=True)
class Outage:
    """GPUs of a host that are out of service for *reason*.

    If *shared*, other projects have GPUs of the same group, and some of ``count`` may be theirs.
    """

    host: str
    product: str
    count: int
    reason: str
    shared: bool = False

    def record(self) -> Mapping[str, Any]:
        """Return the outage for programs. No API of Nova or Placement has its beginning."""
        return {
            "host": self.host,
            "product": self.product,
            "count": self.count,
            "reason": self.reason + (_WHOSE if self.shared else ""),
            "since": UNKNOWN,
        }


@dataclasses.dataclass(slots=True)
class Share:
    """What one project has of one class of GPUs; ``reserved`` are those on its own hosts."""

    delivered: int = 0
    healthy: int = 0
    reserved: int = 0
    in_use: int = 0
    outages: list[Outage] = dataclasses.field(default_factory=list)
    hosts: set[str] = dataclasses.field(default_factory=set)


Shares = Mapping[tuple[str, str], Share]


def shares(
    providers: Iterable[Provider],
    uses: Iterable[UsageRecord],
    owners: Mapping[str, str],
    up: Collection[str],
) -> Shares:
    """Return the share of each project in each class of GPUs, by both.

    A group of a project's own host is delivered to it, but for what others use. Of another group
    each project has what it uses, and :data:`NO_PROJECT` the rest.

    :param owners: the projects of hosts that one project alone may use
    :param up: hosts whose compute service reports
    """
    used: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for use in uses:
        key = (use.provider.uuid, use.provider.resource_class)
        used[key][use.project] += use.gpus + use.vgpus
    by_project: dict[tuple[str, str], Share] = defaultdict(Share)
    for provider in providers:
        amounts = used[provider.uuid, provider.resource_class]
        owner = owners.get(provider.host, NO_PROJECT)
        others = sum(count for project, count in amounts.items() if project != owner)
        delivered = amounts | Counter({owner: max(provider.group.total - others, 0)})
        for project, count in delivered.items():
            shared = count < provider.group.total
            is_up = provider.host in up
            outages = list(_outages(provider, count, amounts[project], is_up, shared))
            share = by_project[project, provider.resource_class]
            share.delivered += count
            share.healthy += max(count - sum(outage.count for outage in outages), 0)
            share.reserved += count if project == owner != NO_PROJECT else 0
            share.in_use += amounts[project]
            share.outages += outages
            share.hosts.add(provider.host)
    return by_project


def _outages(
    provider: Provider, delivered: int, in_use: int, is_up: bool, shared: bool
) -> Iterator[Outage]:
    """Yield what is out of service of the *delivered* GPUs of one group.

    A host that is closed to new instances keeps its guests, so their GPUs are in service. Reserved
    GPUs may be in use, or not: each project that may have them is told of all of them.
    """
    where = (provider.host, provider.product)
    if not is_up:
        yield Outage(*where, delivered, provider.unusable or "down")
        return
    reserved = min(provider.group.reserved, delivered)
    if reserved:
        yield Outage(*where, reserved, _RESERVED, shared)
    if provider.unusable and delivered - in_use > reserved:
        yield Outage(*where, delivered - in_use - reserved, provider.unusable)


def owners(aggregates: Iterable[Any], nodes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the project of each host that Nova's scheduler keeps for that project alone.

    :param nodes: the compute service of each compute node
    """
    of_service: dict[str, set[str]] = defaultdict(set)
    for aggregate in aggregates:
        for key, value in (aggregate.metadata or {}).items():
            if key.startswith(_TENANTS):
                for service in aggregate.hosts or ():
                    of_service[service].update(filter(None, map(str.strip, value.split(","))))
    return {
        node: next(iter(of_service[service]))
        for node, service in nodes.items()
        if len(of_service.get(service, ())) == 1
    }


class ReportService(base_command.Lister):
    """Show for each project the GPUs it was given, their health and declared maintenance.

    Users who may not see hosts get the number of GPUs that their own project has.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        projects.add_option(parser, "Show only this project")
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
        connection = self.connection(parsed_args)
        snapshot = rest.CachedConnection(connection)
        try:
            providers = group_list.read(snapshot)
        except rest.NotPermitted:
            return _COLUMNS, self._own(connection)
        uses = usage.held(snapshot)
        listed = maintenance.aggregates(connection)
        nodes = hosts.services(snapshot)
        up = {node.name for node in hosts.listed_nodes(snapshot) if node.state == "up"}
        wanted = projects.ids(connection, parsed_args.projects)
        known = projects.names(connection)
        now = timeutils.utcnow()
        ahead = [one for one in maintenance.windows(listed) if not one.is_over(now)]
        return _COLUMNS, [
            _row(project, resource_class, share, ahead, nodes, known)
            for (project, resource_class), share in sorted(
                shares(providers, uses, owners(listed, nodes), up).items()
            )
            if (not wanted or project in wanted) and share.delivered
        ]

    def _own(self, connection: Any) -> list[tuple[Any, ...]]:
        project = connection.session.get_project_id()
        counted = rest.placement(connection, f"/usages?project_id={project}")["usages"]
        self.say("Only administrators see hosts: ask them which GPUs are out of service.")
        return [
            (project, name, UNKNOWN, UNKNOWN, UNKNOWN, counted[name], UNKNOWN, UNKNOWN)
            for name in names.RESOURCE_CLASSES
            if counted.get(name)
        ]


def _row(
    project: str,
    resource_class: str,
    share: Share,
    ahead: Iterable[Window],
    nodes: Mapping[str, str],
    known: Mapping[str, str],
) -> tuple[Any, ...]:
    services = {nodes.get(host, host) for host in share.hosts}
    planned = [_window(one, services) for one in ahead if services.intersection(one.hosts)]
    return (
        projects.cell(project, known) if project else "(no project)",
        *(resource_class, share.delivered, share.healthy, share.reserved, share.in_use),
        base_command.Lines([outage.record() for outage in share.outages], _outage_line),
        base_command.Lines(planned, _window_line),
    )


def _window(window: Window, services: set[str]) -> Mapping[str, Any]:
    """Return a window for programs, with the project's hosts alone."""
    return {
        "name": window.name,
        "start": maintenance.text(window.start),
        "end": maintenance.text(window.end),
        "reason": window.reason,
        "hosts": sorted(services.intersection(window.hosts)),
    }


def _outage_line(record: Mapping[str, Any]) -> str:
    return f"{record['host']}: {record['count']} {record['product']}, {record['reason']}"


def _window_line(record: Mapping[str, Any]) -> str:
    return f"{record['start']} to {record['end']} {', '.join(record['hosts'])}: {record['reason']}"
