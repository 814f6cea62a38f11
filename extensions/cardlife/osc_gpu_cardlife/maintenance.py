# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu maintenance``: windows in which hosts are out of service, declared in advance.

A window is a host aggregate of Nova whose metadata has its start, end and reason. Nova keeps it,
and lets administrators alone read and write it. No filter of Nova reads these words: declaring a
window closes no host.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from osc_lib import exceptions
from oslo_utils import timeutils

from osc_gpu import base_command, hosts, rest

UNKNOWN = "unknown"
_START, _END, _REASON = "gpu_maintenance_start", "gpu_maintenance_end", "gpu_maintenance_reason"
_COLUMNS = ("Name", "State", "Start", "End", "Reason", "Hosts")
# As long as Nova lets a value of metadata be
_MOST_OF_A_REASON = 255


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """A declared maintenance; times in UTC, ``None`` if what Nova has is no time.

    ``hosts`` are compute services, by which aggregates name hosts.
    """

    name: str
    start: datetime.datetime | None
    end: datetime.datetime | None
    reason: str
    hosts: tuple[str, ...]

    def is_over(self, now: datetime.datetime) -> bool:
        return self.end is not None and self.end <= now

    def state(self, now: datetime.datetime) -> str:
        if self.is_over(now):
            return "over"
        if self.start is None or self.end is None:
            return UNKNOWN
        return "in progress" if self.start <= now else "planned"


def windows(aggregates: Iterable[Any]) -> list[Window]:
    """Return the windows among Nova's aggregates, sorted by their start."""
    declared = [
        Window(
            aggregate.name,
            _parsed(words.get(_START, "")),
            _parsed(words.get(_END, "")),
            words.get(_REASON, ""),
            tuple(sorted(aggregate.hosts or ())),
        )
        for aggregate in aggregates
        if (words := _words(aggregate))
    ]
    return sorted(declared, key=lambda window: (text(window.start), window.name))


def text(time: datetime.datetime | None) -> str:
    return UNKNOWN if time is None else f"{time:%Y-%m-%dT%H:%M:%SZ}"


def aggregates(connection: Any) -> list[Any]:
    """Return all host aggregates; Nova has no pages of them."""
    with rest.clean_refusals("Nova"):
        return list(connection.compute.aggregates())


def _words(aggregate: Any) -> Mapping[str, str]:
    words: Mapping[str, str] = aggregate.metadata or {}
    return words if _START in words or _END in words else {}


def _parsed(time: str) -> datetime.datetime | None:
    try:
        parsed = datetime.datetime.fromisoformat(time)
        return timeutils.normalize_time(parsed)
    except (ValueError, OverflowError):
        return None


def _time(time: str) -> datetime.datetime:
    """Parse an option's time; one without a zone is in UTC."""
    parsed = _parsed(time)
    if parsed is None:
        raise argparse.ArgumentTypeError(
            f"{time!r} is not a time such as 2026-12-05T22:00 (UTC) or 2026-12-05T22:00+01:00"
        )
    return parsed


class CreateMaintenance(base_command.Command):
    """Declare a maintenance of hosts: when, and why. It closes no host.

    Nova keeps it as a host aggregate. For administrators.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("name", metavar="<name>", help="Name that no host aggregate has yet")
        for option in ("start", "end"):
            parser.add_argument(
                f"--{option}",
                metavar="<time>",
                required=True,
                type=_time,
                help=f"When it {option}s, in UTC, or with an offset such as +01:00",
            )
        parser.add_argument("--reason", metavar="<text>", default="", help="Why")
        parser.add_argument(
            "--host",
            metavar="<host>",
            dest="hosts",
            required=True,
            action="append",
            help="Compute node that is out of service (repeat for several)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        start, end, reason = parsed_args.start, parsed_args.end, parsed_args.reason
        if end <= start:
            raise exceptions.CommandError(f"--end {text(end)} is not after --start {text(start)}")
        if end <= timeutils.utcnow():
            raise exceptions.CommandError(f"--end {text(end)} is over; times are in UTC")
        if len(reason) > _MOST_OF_A_REASON:
            raise exceptions.CommandError(
                f"--reason has {len(reason)} characters, and Nova keeps {_MOST_OF_A_REASON}"
            )
        connection = self.connection(parsed_args)
        services = hosts.services(connection)
        for host in parsed_args.hosts:
            if host not in services:
                raise exceptions.CommandError(f"Nova has no host called {host}")
        compute = connection.compute
        with rest.clean_refusals("Nova"):
            made = compute.create_aggregate(name=parsed_args.name)
        try:
            with rest.clean_refusals("Nova"):
                # First the words, by which "maintenance delete" knows it
                words = {_START: text(start), _END: text(end), _REASON: reason}
                compute.set_aggregate_metadata(made.id, words)
                for host in sorted({services[host] for host in parsed_args.hosts}):
                    compute.add_host_to_aggregate(made.id, host)
        except exceptions.CommandError:
            with contextlib.suppress(exceptions.CommandError):
                _delete(connection, made.id)
            raise
        self.say(f"{parsed_args.name}: declared; openstack gpu drain closes hosts.")


class ListMaintenance(base_command.Lister):
    """List the declared maintenances, also those that are over. For administrators."""

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterator[tuple[Any, ...]]]:
        now = timeutils.utcnow()
        declared = windows(aggregates(self.connection(parsed_args)))
        return _COLUMNS, (
            (
                *(window.name, window.state(now), text(window.start), text(window.end)),
                *(window.reason, base_command.Lines(window.hosts)),
            )
            for window in declared
        )


class DeleteMaintenance(base_command.Command):
    """Delete a declared maintenance. It opens no host. For administrators."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("name", metavar="<name>", help="Name of the maintenance")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        connection = self.connection(parsed_args)
        for aggregate in aggregates(connection):
            if aggregate.name == parsed_args.name and _words(aggregate):
                _delete(connection, aggregate.id)
                self.say(f"{parsed_args.name}: deleted; openstack gpu drain --undo opens hosts.")
                return
        raise exceptions.CommandError(
            f"no maintenance is called {parsed_args.name}; openstack gpu maintenance list shows all"
        )


def _delete(connection: Any, aggregate: int) -> None:
    """Delete an aggregate, which Nova does once it has no hosts."""
    compute = connection.compute
    with rest.clean_refusals("Nova"):
        for host in compute.get_aggregate(aggregate).hosts or ():
            compute.remove_host_from_aggregate(aggregate, host)
        compute.delete_aggregate(aggregate, ignore_missing=False)
