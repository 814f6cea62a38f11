# SPDX-License-Identifier: Apache-2.0
"""What preemption adds to ``openstack gpu capacity``, ``explain`` and ``flavor create``.

cliff loads the hooks of a command from the entry point group with the command's name.
"""

from __future__ import annotations

import argparse
from typing import Any

from cliff import hooks

from nova_gpu.core.flavor.parsers import OnStop
from nova_gpu.core.names import ON_STOP
from nova_gpu_fleet.core.names import ON_PREEMPT, PREEMPTIBLE
from nova_gpu_fleet.core.preemptible import End, is_preemptible
from osc_gpu import base_command, explain, flavors, projects, rest, servers
from osc_gpu.base_command import Lines
from osc_gpu_fleet import preemption_candidates

_THEN = "With Preemption"


class _Hook(hooks.CommandHook):
    """The base class of hooks: one that changes nothing."""

    cmd: base_command.Command

    def get_parser(self, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return parser

    def get_epilog(self) -> None:
        return None

    def before(self, parsed_args: argparse.Namespace) -> argparse.Namespace:
        return parsed_args

    def after(self, parsed_args: argparse.Namespace, return_code: Any) -> Any:
        """Return what the command prints: *return_code*, its columns and values."""
        return return_code


class PreemptionCapacity(_Hook):
    """Adds the option ``--project`` and a column to ``openstack gpu capacity``.

    The column, ``With Preemption``, has the number of instances that could boot on a host if all
    preemptible instances of these projects were preempted.
    """

    def get_parser(self, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        projects.add_option(
            parser,
            "Also show how many could boot if openstack gpu preempt took all GPUs that it may take "
            "now of the preemptible instances of this project",
        )
        return parser

    def after(self, parsed_args: argparse.Namespace, return_code: Any) -> Any:
        if not parsed_args.projects:
            return return_code
        columns, rows = return_code
        connection = self.cmd.connection(parsed_args)
        snapshot = rest.CachedConnection(connection)
        (flavor,) = flavors.read(snapshot, [parsed_args.flavor])
        need = preemption_candidates.need_of(snapshot, flavor)
        try:
            then = preemption_candidates.room(
                snapshot, need, projects.ids(connection, parsed_args.projects)
            )
        except rest.NotPermitted:
            return return_code  # the hosts are for administrators
        return (*columns, _THEN), [(*row, then.get(row[0], row[1])) for row in rows]


class CreatePreemptibleFlavor(_Hook):
    """Lets a stopped instance of a preemptible flavor give its GPUs back."""

    def before(self, parsed_args: argparse.Namespace) -> argparse.Namespace:
        stated = vars(parsed_args)
        if stated[PREEMPTIBLE] and stated[ON_PREEMPT] != End.DELETE:
            stated[ON_STOP] = OnStop.RELEASE
        return parsed_args


class Explain(_Hook):
    """Adds a row to ``openstack gpu explain`` for a preempted server.

    It shows when its GPUs are taken, and for which servers.
    """

    def after(self, parsed_args: argparse.Namespace, return_code: Any) -> Any:
        names, values = return_code
        shown = dict(zip(names, values, strict=True))
        connection = self.cmd.connection(parsed_args)
        server = servers.get(connection, shown["id"])
        at = preemption_candidates.noticed_time(server)
        if at is None or not is_preemptible(servers.request_of(server).extra_specs):
            return return_code
        lines = [
            f"told that its GPUs are taken at {at.isoformat()}Z, for",
            *preemption_candidates.takers(connection, server),
        ]
        shown["preempted"] = Lines(lines, explain.in_column)
        return tuple(shown), tuple(shown.values())
