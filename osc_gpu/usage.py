# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu usage``: shows which instances and projects have GPUs."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from openstack import exceptions as sdk_exc
from osc_lib import exceptions

from nova_gpu.core import names
from osc_gpu import base_command, consumers, group_list, projects, rest, servers
from osc_gpu.group_list import Provider

_ALL = (
    *("Server", "Name", "Status", "Project", "Host", "Product", "Architecture", "GPUs", "vGPUs"),
    "Remark",
)
_OWN = ("Server", "Name", "Status", "GPUs", "vGPUs", "Asked For")
_LIMITS = ("Resource Class", "In Use", "Limit")
# How many projects are named with their sums
_SHOWN = 10
_NOT_REGISTERED = "not registered"
_MOVE = "kept until its move is confirmed or reverted"
_UNKNOWN = "unknown to Nova; nova-gpu verify on the host says more"


@dataclasses.dataclass(frozen=True, slots=True)
class UsageRecord:
    """The GPUs of one group that Placement counts for one instance, or for its migration.

    ``server`` is the instance's uuid, or the consumer's if Nova knows no server. ``remark`` says
    why they count if the instance itself is not their consumer; otherwise it is empty.
    """

    server: str
    name: str
    status: str
    project: str
    remark: str
    provider: Provider
    gpus: int
    vgpus: int = 0


class ShowUsage(base_command.Lister):
    """Show the GPUs and vGPUs of each instance, with its project and host.

    Users who may not see hosts get the instances of their own project.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--limits",
            action="store_true",
            help="Show what counts for the user's project, and its unified limits, instead",
        )
        projects.add_option(parser, "Show only instances of this project")
        parser.add_argument(
            "--host", metavar="<host>", help="Show only instances on this compute node"
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
        connection = self.connection(parsed_args)
        if parsed_args.limits:
            if parsed_args.projects or parsed_args.host:
                raise exceptions.CommandError(
                    "--limits goes without --project and --host: it is of the user's own project"
                )
            rows = list(_limits(connection))
            if any(limit == _NOT_REGISTERED for *_, limit in rows):
                self.say(
                    f"{_NOT_REGISTERED}: Keystone has no limit for it, so it is unlimited, unless "
                    "Nova's settings refuse what has no limit; ask an administrator."
                )
            return _LIMITS, rows
        try:
            uses = held(rest.CachedConnection(connection))
        except rest.NotPermitted:
            return _OWN, self._own(connection)
        wanted = projects.ids(connection, parsed_args.projects)
        uses = [
            use
            for use in uses
            if (not wanted or use.project in wanted)
            and parsed_args.host in (None, use.provider.host)
        ]
        if not uses:
            group_list.refuse_unknown(connection, parsed_args.host)
        gpus, vgpus = sum(use.gpus for use in uses), sum(use.vgpus for use in uses)
        self.say(
            f"GPUs in use: {gpus}; vGPUs: {vgpus}; projects: {len({use.project for use in uses})}."
        )
        known, sums = projects.names(connection), by_project(uses)
        if len(sums) > 1:
            self.say(f"By project: {_in_words(sums, known)}.")
        return _ALL, [_row(use, projects.cell(use.project, known)) for use in uses]

    def _own(self, connection: Any) -> list[tuple[Any, ...]]:
        rows = sorted(_of_project(connection), key=lambda row: row[1])
        project = connection.session.get_project_id()
        counted = rest.placement(connection, f"/usages?project_id={project}")["usages"]
        self.say(
            f"This project has {counted.get(names.RESOURCE_CLASS, 0)} GPUs and "
            f"{counted.get(names.VGPU_RESOURCE_CLASS, 0)} vGPUs, with those that stopped instances "
            "keep. Only administrators see other projects, and hosts."
        )
        return rows


def _limits(connection: Any) -> Iterator[tuple[str, int, str]]:
    """Yield a row for each class of GPUs that counts for the project, or has a limit.

    The names are those of Keystone's limits. A limit of the project replaces the registered one.
    """
    project, identity = connection.session.get_project_id(), connection.identity
    region = connection.config.region_name
    here = {"region_id": region} if region else {}
    used = rest.placement(connection, f"/usages?project_id={project}")["usages"]
    with rest.clean_refusals("Keystone"):
        limits = {
            item.resource_name: item.default_limit for item in identity.registered_limits(**here)
        }
        own = identity.limits(project_id=project, **here)
        limits |= {item.resource_name: item.resource_limit for item in own}
    named = {f"class:{name}" for name in (*names.RESOURCE_CLASSES, *used)}
    for name in sorted(named | limits.keys()):
        resource_class = name.removeprefix("class:")
        if names.is_gpu_class(resource_class):
            limit = limits.get(name, _NOT_REGISTERED)
            yield name, used.get(resource_class, 0), "unlimited" if limit == -1 else str(limit)


def _row(use: UsageRecord, project: Any) -> tuple[Any, ...]:
    where = (use.provider.host, use.provider.product, use.provider.architecture)
    return use.server, use.name, use.status, project, *where, use.gpus, use.vgpus, use.remark


def by_project(uses: Iterable[UsageRecord]) -> list[tuple[str, int, int, int]]:
    """Return each project with its instances, GPUs and vGPUs, those with the most of both first."""
    of_projects: dict[str, list[UsageRecord]] = {}
    for use in uses:
        of_projects.setdefault(use.project, []).append(use)
    rows = [
        (
            *(project, len({use.server for use in had})),
            *(sum(use.gpus for use in had), sum(use.vgpus for use in had)),
        )
        for project, had in of_projects.items()
    ]
    return sorted(rows, key=lambda row: -row[2] - row[3])


def _in_words(sums: Sequence[tuple[str, int, int, int]], known: Mapping[str, str]) -> str:
    texts = [
        f"{known.get(project) or project} {gpus}" + (f" and {vgpus} vGPUs" if vgpus else "")
        for project, _, gpus, vgpus in sums[:_SHOWN]
    ]
    return ", ".join(texts) + (f", and {len(sums) - _SHOWN} more" if len(sums) > _SHOWN else "")


def held(connection: rest.CachedConnection) -> list[UsageRecord]:
    """Return the GPUs that Placement counts for each instance and migration.

    They are sorted by host, product and instance name.
    """
    uses = []
    groups = group_list.read(connection, reserved=False)
    with rest.clean_refusals("Nova"):
        listed = connection.compute.servers(details=True, all_projects=True)
    known = _Consumers(connection, listed)
    for provider, amounts in zip(groups, consumers.read(connection, groups, listed), strict=True):
        for consumer, amount in amounts.items():
            who = known.describe(consumer, provider.host)
            is_whole = provider.resource_class == names.RESOURCE_CLASS
            counts = (amount, 0) if is_whole else (0, amount)
            uses.append(UsageRecord(*who, provider, *counts))
    return sorted(uses, key=lambda use: (use.provider.host, use.provider.product, use.name))


class _Consumers:
    """The servers behind consumers of GPUs; one that is not *listed* takes a request to Nova."""

    def __init__(self, connection: rest.CachedConnection, listed: Iterable[Any]) -> None:
        self._connection = connection
        self._compute = connection.compute
        self._servers: dict[str, Any] = {server.id: server for server in listed}

    def describe(self, consumer: str, host: str) -> tuple[str, str, str, str, str]:
        """Return the uuid, name, status and project of the consumer's server, and a remark.

        The server of a migration is the one that migrates. If Nova knows no server, the uuid is
        the consumer's own, and name and status are empty, as they are while a server's cell does
        not answer. The remark is empty if the consumer is a server.
        """
        with rest.clean_refusals("Nova"):
            if server := self._server(consumer):
                return *_shown(server), ""
        moving = consumers.moving(self._connection, consumer, host)
        with rest.clean_refusals("Nova"):
            if moving and (server := self._server(moving)):
                return *_shown(server), _MOVE
        record = rest.placement(self._connection, f"/allocations/{consumer}")
        return consumer, "", "", record.get("project_id", ""), _UNKNOWN

    def _server(self, uuid: str) -> Any:
        if uuid not in self._servers:
            try:
                self._servers[uuid] = self._compute.get_server(uuid)
            except sdk_exc.NotFoundException:
                self._servers[uuid] = None
        return self._servers[uuid]


def _shown(server: Any) -> tuple[str, str, str, str]:
    return server.id, server.name or "", server.status or "", server.project_id


def _of_project(connection: Any) -> Iterator[tuple[Any, ...]]:
    with rest.clean_refusals("Nova"):
        for server in connection.compute.servers(details=True):
            # A server on no host (shelved, or never started) has no host_id.
            if server.host_id and (requests := servers.requests_of(server)):
                counts = dict.fromkeys(names.RESOURCE_CLASSES, 0)
                if not servers.gave_back(server):
                    counts |= {request.resource_class: request.count for request in requests}
                text = servers.asked_for(server)
                yield server.id, server.name, server.status, *counts.values(), text
