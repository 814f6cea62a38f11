# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu start``: starts servers that gave their GPUs back."""

from __future__ import annotations

import argparse
import time
from typing import Any

from openstack import exceptions as sdk_exc
from osc_lib import exceptions

from nova_gpu.core import exception
from nova_gpu_fleet.core import names
from nova_gpu_fleet.core.extra_specs import ON_STOP_MOVE
from osc_gpu import base_command, rest, servers
from osc_gpu_fleet import last_action, retries

# The longest time for one step, because an image of a disk takes its time
_STEP_S = 3600

_OFFLOADED = "SHELVED_OFFLOADED"
_STARTED = ("SHUTOFF", "SHELVED", _OFFLOADED)


class _NoGPUs(exceptions.CommandError):
    """The error that a server found no free GPUs, so that a retry may succeed."""


class StartServer(base_command.Command):
    """Start a server that released its GPUs at a stop, on another host if its own has none.

    To change its host, the server is shelved and unshelved if its flavor has gpu:on_stop_move=true.
    A server that is shelved already is unshelved.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("server", metavar="<server>", help="Server (name or ID)")
        parser.add_argument(
            "--step-timeout",
            metavar="<seconds>",
            type=base_command.seconds,
            default=_STEP_S,
            help=f"Seconds to wait for the end of each step (default: {_STEP_S})",
        )
        retries.add_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self._connection = self.connection(parsed_args)
        self._patience_s = parsed_args.step_timeout
        until, message = time.monotonic() + parsed_args.for_s, ""
        while True:
            try:
                return self._start(servers.find(self._connection, parsed_args.server))
            except _NoGPUs as e:
                if time.monotonic() + parsed_args.every_s > until:
                    if parsed_args.for_s:
                        e.args = (f"{e}; openstack gpu start {parsed_args.server} tries again",)
                    raise
                if message != (message := str(e)):
                    self.say(f"it waits: {message}")
            time.sleep(parsed_args.every_s)

    def _start(self, server: Any) -> None:
        compute = self._connection.compute
        if server.status == "SHUTOFF" and not server.task_state:
            server = self._step("starting it", server, compute.start_server)
            if server.status == "SHUTOFF":
                self._expect_may_move(server)
                server = self._step("shelving it", server, compute.shelve_server)
        if server.status == "SHELVED" and not server.task_state:
            server = self._step("taking it from its host", server, compute.shelve_offload_server)
        if server.status == _OFFLOADED and not server.task_state:
            server = self._step("starting it where there are GPUs", server, compute.unshelve_server)
        if server.status != "ACTIVE" or server.task_state:
            waits = server.status == _OFFLOADED and not server.task_state
            raise (_NoGPUs if waits else exceptions.CommandError)(self._state(server))

    def _step(self, doing: str, server: Any, action: Any) -> Any:
        """Call *action* with the server, and return it once Nova has no task for it."""
        self.say(f"{server.name}: {doing}")
        with rest.clean_refusals("Nova"):
            try:
                action(server)
            except sdk_exc.ForbiddenException as e:
                # All users may shelve, not all may offload; Nova's answer over quota is the same.
                raise exceptions.CommandError(
                    f"{doing}: Nova refused that ({e.details or e}); {_go_on(server)}"
                ) from e
        uuid = server.id
        for server in retries.polled(lambda: servers.get(self._connection, uuid), self._patience_s):
            if not server.task_state:
                return server
        raise exceptions.CommandError(
            f"{doing}: Nova is still busy with {server.task_state} after "
            f"{self._patience_s:g} s; {_go_on(server)}"
        )

    def _expect_may_move(self, server: Any) -> None:
        """Refuse a server whose start failed, unless it lacked GPUs and its flavor permits moves.

        :raises CommandError: if it failed for another reason, as far as Nova shows that
        """
        message = self._state(server)
        why = last_action.reason(self._connection, server)
        if why and exception.GAVE_BACK not in why:
            raise exceptions.CommandError(message)
        try:
            if ON_STOP_MOVE.of(servers.request_of(server).extra_specs):
                return
        except exception.InvalidExtraSpec as e:
            message = f"{message}; {e}"
        raise _NoGPUs(
            f"{message}; its flavor does not say {names.ON_STOP_MOVE}=true, so it is not moved: "
            "openstack server shelve, and then unshelve, brings it to another host"
        )

    def _state(self, server: Any) -> str:
        """Return a line with the server's status and why it does not run, or where to read that."""
        if server.task_state:
            busy = f"{server.name} is {server.status}, busy with {server.task_state}"
            return f"{busy}; {_go_on(server)}"
        why = last_action.reason(self._connection, server) or (server.fault or {}).get("message")
        if not why and server.status in _STARTED:
            why = f"see openstack gpu explain {server.id} for the known reasons"
        why = why or "only stopped and shelved servers can be started"
        return f"{server.name} is {server.status}: {why.removesuffix('.')}"


def _go_on(server: Any) -> str:
    return f"look at openstack server show {server.id}, and then run the command again"
