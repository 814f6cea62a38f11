# SPDX-License-Identifier: Apache-2.0
"""Migrations of servers by a plan, one after the other, each followed to its end.

Nothing about them is stored. If a run is killed, the next run confirms the cold migrations that
await a confirmation, and makes a new plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openstack import exceptions as sdk_exc
from osc_lib import exceptions

from osc_gpu import rest, servers
from osc_gpu_fleet import last_action, retries
from osc_gpu_fleet.planning.fleet import Move, Way

_WAITS = "VERIFY_RESIZE"
_STATUS = {Way.STOPPED: "SHUTOFF", Way.LIVE: "ACTIVE", Way.COLD: "ACTIVE"}


class Stopped(exceptions.CommandError):
    """The error that a move did not go as planned; no later move of the plan is begun."""


@dataclasses.dataclass(frozen=True)
class _Moving:
    """A server that Nova moves, or has moved.

    ``source`` is the name of the node that it leaves, and ``patience_s`` the seconds that Nova may
    take for each task.
    """

    connection: Any
    uuid: str
    source: str
    patience_s: float

    def _server(self) -> Any:
        return servers.get(self.connection, self.uuid)

    def confirm(self, server: Any) -> Any:
        """Confirm the server's cold migration, if it is not yet, and return the server then."""
        with rest.clean_refusals("Nova"):
            try:
                self.connection.compute.confirm_server_resize(server)
            except sdk_exc.HttpException:
                if self._server().status == _WAITS:
                    raise
        # During a confirmation the server shows no task, so its status is awaited.
        return self._when_idle(but_not=_WAITS)

    def _when_idle(self, but_not: str = "") -> Any:
        """Wait until the server has no task and another status than *but_not*, and return it."""
        for server in retries.polled(self._server, self.patience_s):
            if not server.task_state and server.status != but_not:
                return server
        doing = server.task_state or "its confirmation"
        raise Stopped(
            f"it is still busy with {doing} after {self.patience_s:g} s; look at "
            f"openstack server migration list --server {server.id}, and then plan again"
        )

    def wait_for_source(self) -> None:
        """Wait until the source's GPUs are free in Placement, a moment after the move itself."""
        with rest.clean_refusals("Nova"):
            migrations = self.connection.compute.migrations(server_id=self.uuid)
            newest = max(migrations, key=lambda migration: migration.created_at)
        url = f"/allocations/{newest.uuid}"
        for held in retries.polled(lambda: rest.placement(self.connection, url), self.patience_s):
            if not held["allocations"]:
                return
        raise Stopped(
            f"it is moved, but {self.source} keeps its GPUs in Placement for the "
            f"migration {newest.uuid}; nova-gpu verify on that host says how to repair it"
        )


@dataclasses.dataclass(frozen=True)
class _Step(_Moving):
    """One move of a plan.

    ``here`` and ``there`` are the host names of the compute services at source and destination.
    """

    move: Move
    here: str
    there: str

    def make(self) -> None:
        """Make the move, and wait for its end.

        :raises Stopped: with the server's state, and how to continue
        """
        server = self._server()
        self._expect_as_planned(server)
        with rest.clean_refusals("Nova"):
            if self.move.way is Way.LIVE:
                self.connection.compute.live_migrate_server(server, host=self.there)
            else:
                self.connection.compute.migrate_server(server, host=self.there)
        server = self._when_idle()
        if self.move.way is not Way.LIVE:
            if server.status != _WAITS or server.compute_host != self.there:
                raise self._failed(server)
            server = self.confirm(server)
        if server.status != _STATUS[self.move.way] or server.compute_host != self.there:
            raise self._failed(server)
        self.wait_for_source()

    def _expect_as_planned(self, server: Any) -> None:
        """Refuse a server whose status, host or task is not that of the plan."""
        state = server.status, server.compute_host, server.task_state
        if state != (_STATUS[self.move.way], self.here, None):
            busy = f", busy with {server.task_state}" if server.task_state else ""
            raise Stopped(
                f"it has changed since the plan: {server.status} on {server.compute_host}{busy}"
            )

    def _failed(self, server: Any) -> Stopped:
        uuid = server.id
        if server.status == _WAITS:
            return Stopped(
                f"it waits on {server.compute_host} for a confirmation and has GPUs of both hosts: "
                f"end the move by openstack server migration confirm {uuid}, or revert"
            )
        reason = last_action.reason(
            self.connection, server
        )  # and not why another one failed before
        why = reason or f"see openstack server event list {uuid}"
        return Stopped(f"it is {server.status} on {server.compute_host}: {why}")


def finish(connection: Any, say: Callable[[str], None], patience_s: float) -> None:
    """Confirm the cold migrations of servers with GPUs that this user began and did not confirm.

    A run that was killed leaves one behind, which keeps the GPUs of both hosts until it is
    confirmed. Resizes and the migrations of other users are left alone.
    """
    own = {"status": "finished", "migration_type": "migration"}
    with rest.clean_refusals("Nova"):
        user = connection.session.get_user_id()
        begun = list(connection.compute.migrations(user_id=user, **own)) if user else []
        sources = {move.server_id: move.source_node for move in begun if move.user_id == user}
        if not sources:
            return
        listed = connection.compute.servers(details=True, all_projects=True, status=_WAITS)
        waiting = [
            server for server in listed if server.id in sources and servers.requests_of(server)
        ]
    for server in waiting:
        say(f"{server.name} ({server.id}): confirmed, as its earlier move waits for that")
        moving = _Moving(connection, server.id, sources[server.id], patience_s)
        moving.confirm(server)
        moving.wait_for_source()


def make(
    connection: Any,
    moves: Sequence[Move],
    services: Mapping[str, str],
    say: Callable[[str], None],
    patience_s: float,
) -> None:
    """Make *moves* in their order, and stop at the first that does not go as planned.

    :param services: the host name of each node's compute service, by the node's name
    :raises Stopped: with the move's number, what happened and how to continue
    """
    for number, move in enumerate(moves, 1):
        who = f"{move.instance.name} ({move.instance.uuid})"
        step = f"step {number} of {len(moves)}"
        say(f"{step}: {who} from {move.source} to {move.destination}; {move.way.in_words}")
        here, there = (services.get(host, host) for host in (move.source, move.destination))
        try:
            uuid = move.instance.uuid
            _Step(connection, uuid, move.source, patience_s, move, here, there).make()
        except exceptions.CommandError as e:
            raise Stopped(f"{step}, {who}: {e}. {_done(number)}") from e
        except KeyboardInterrupt:
            say(
                f"{step}, {who}: interrupted; Nova continues the move, and a cold move then waits "
                f"for openstack server migration confirm. {_done(number)}"
            )
            raise


def _done(number: int) -> str:
    made = {1: "No step is made", 2: "The step before it is made"}.get(
        number, f"The {number - 1} steps before it are made"
    )
    return f"{made}, and none after it is begun; run the command again for a new plan"
