# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu server create``: creates a server, and retries while no host has GPUs for it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import Any

from openstack import exceptions as sdk_exc
from osc_lib import exceptions

from osc_gpu import base_command, rest, servers
from osc_gpu_fleet import retries, unserved

# The longest time for one build, because an image takes its time
_BUILD_S = 3600
_FOR_S = 1800


class CreateServer(base_command.ShowOne):
    """Create a server like openstack server create, and retry while no host has GPUs for it.

    In addition to that command's options it has --for and --every: how long and how often it
    retries; it always waits for the build, with or without --wait. What no wait can change, such as
    a flavor that no host can serve, ends it at once. If an operation on the server fails later,
    openstack gpu explain says why.

    Nova cannot retry a server that found no host, so each try creates a server. The failed one
    stays until the next one exists, because openstack gpu preempt makes room for failed servers.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of ``openstack server create`` with the options for retries."""
        parser: argparse.ArgumentParser
        if self.app is None:  # in the documentation, which shows what this adds
            parser = super().get_parser(prog_name)
        else:
            factory, _, _ = self.app.command_manager.find_command(["server", "create"])
            self._create = factory(self.app, self.app_args)
            parser = self._create.get_parser(prog_name)
            parser.description = self.get_description()
            base_command.add_timeout(parser)
            for action in parser._actions:  # argparse has no other way to hide what is refused
                if action.dest in ("min", "max"):
                    action.help = argparse.SUPPRESS
        retries.add_options(parser, _FOR_S)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        for option in ("min", "max"):
            if getattr(parsed_args, option, None) not in (None, 1):
                raise exceptions.CommandError(
                    f"--{option} is not possible: retries create one server at a time"
                )
        parsed_args.wait = False  # this command waits for the build itself
        self._connection = self.connection(parsed_args)
        self._made: set[str] = set()
        try:
            server = self._built(parsed_args)
        except KeyboardInterrupt:
            for uuid in sorted(self._made):
                self.say(f"interrupted: server {uuid} exists; openstack server delete {uuid}")
            raise
        if server.status == "ERROR":
            message = (server.fault or {}).get("message", "")
            raise exceptions.CommandError(f"{server.name} ({server.id}): {message}")
        shown = {"id": server.id, "name": server.name, "status": server.status}
        return tuple(shown), tuple(shown.values())

    def _built(self, parsed_args: argparse.Namespace) -> Any:
        """Create servers until one found a host or failed for another reason, and return it.

        :raises CommandError: after ``--for``
        """
        until, before, text = time.monotonic() + parsed_args.for_s, None, ""
        while True:
            server = self._create_one(parsed_args, before)
            for former in self._replaced(server):
                self._delete(former)
            if not unserved.found_none(self._connection, server):
                return server
            why = server.fault["message"]
            if time.monotonic() + parsed_args.every_s > until:
                raise exceptions.CommandError(
                    f"{server.name} ({server.id}) found no host in {parsed_args.for_s:g} s and "
                    f"stays in ERROR: {why}\n"
                    f"  delete it (openstack server delete {server.id}), or try again later or "
                    "with a longer --for: the next server of its name and flavor replaces it"
                )
            if why != text:
                text = why
                self.say(f"{server.name}: it waits: {why}")
            before = server
            time.sleep(parsed_args.every_s)

    def _create_one(self, parsed_args: argparse.Namespace, before: Any) -> Any:
        """Create a server, and return it once it is built or has failed.

        :param before: the failed server of the last try, or ``None``; deleted if it uses up quota
        """
        try:
            columns, values = self._create.take_action(parsed_args)
        except sdk_exc.ForbiddenException as e:
            if not before:
                raise exceptions.CommandError(f"Nova: {e.details or e}") from e
            # Over quota: the previous server counts as long as it exists.
            self._delete(before)
            return self._create_one(parsed_args, None)
        row = dict(zip(columns, values, strict=True))
        self._made.add(row["id"])
        for server in retries.polled(lambda: servers.get(self._connection, row["id"]), _BUILD_S):
            if server.status != "BUILD":
                return server
        raise exceptions.CommandError(
            f"{server.name} ({server.id}) is still being built after {_BUILD_S} s; see "
            f"openstack server event list {server.id}"
        )

    def _replaced(self, server: Any) -> list[Any]:
        """Return the older servers that found no host and that *server* replaces.

        They have its name and flavor; a run of this command that was killed leaves one, too.
        """
        with rest.clean_refusals("Nova"):
            failed = list(self._connection.compute.servers(details=True, status="ERROR"))
        return [
            other
            for other in failed
            if (other.name, other.flavor.name) == (server.name, server.flavor.name)
            and other.id != server.id
            and other.created_at <= server.created_at
            and unserved.found_none(self._connection, other)
        ]

    def _delete(self, server: Any) -> None:
        compute = self._connection.compute
        with rest.clean_refusals("Nova"):
            compute.delete_server(server)
            compute.wait_for_delete(server, interval=retries.POLL_S)
        self._made.discard(server.id)
