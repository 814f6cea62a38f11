# SPDX-License-Identifier: Apache-2.0
"""openstacksdk's own connection to a functional test's cloud, and OpenStackClient's commands."""

from __future__ import annotations

import argparse
import functools
import io
from collections.abc import Mapping, Sequence
from importlib import metadata
from types import SimpleNamespace
from typing import Any

from keystoneauth1 import plugin, session
from openstack import connection
from osc_lib.command import command


class Auth(plugin.BaseAuthPlugin):  # type: ignore[misc]
    """Who one is, as the tests' API and Placement take it, and where they are."""

    def __init__(self, endpoints: Mapping[str, str], headers: Mapping[str, str]) -> None:
        super().__init__()
        self._endpoints = endpoints
        self._headers = dict(headers)

    def get_headers(self, session: Any, **kwargs: Any) -> dict[str, str]:
        return self._headers

    def get_user_id(self, session: Any, **kwargs: Any) -> str | None:
        return self._headers.get("X-User-Id")

    def get_project_id(self, session: Any, **kwargs: Any) -> str | None:
        return self._headers.get("X-Auth-Project-Id")

    def get_endpoint(
        self, session: Any, service_type: str | None = None, **kwargs: Any
    ) -> str | None:
        return self._endpoints.get(service_type or "")

    def get_endpoint_data(
        self, session: Any, *, service_type: str | None = None, **kwargs: Any
    ) -> Any:
        """With the versions that the service itself says it has"""
        kwargs["endpoint_override"] = self.get_endpoint(session, service_type)
        return super().get_endpoint_data(session, **kwargs)

    def get_api_major_version(self, session: Any, **kwargs: Any) -> Any:
        data = self.get_endpoint_data(session, **kwargs)
        return data.api_version if data else None


class _Connection(connection.Connection):  # type: ignore[misc]
    """With a Keystone that has projects by their IDs"""

    identity = SimpleNamespace(
        find_project=lambda named: SimpleNamespace(id=named), projects=lambda: ()
    )


def connect(test: Any, *, admin: bool = True) -> connection.Connection:
    """As an administrator of *test*'s cloud, or as one of its users"""
    user, roles = ("admin", "reader,member,admin") if admin else ("fake", "reader,member")
    project = test.api.project_id
    headers = {
        "X-Auth-User": user,
        "X-User-Id": user,
        "X-Auth-Project-Id": project,
        "X-Roles": roles,
        # of Placement's noauth2: it gives the role admin to a user of that name
        "X-Auth-Token": f"{user}:{project}",
    }
    endpoints = {"compute": test.api.base_url, "placement": test.placement.fixture.endpoint}
    return _Connection(session=session.Session(auth=Auth(endpoints, headers)))


def run(test: Any, command: type, *arguments: str, admin: bool = True) -> Any:
    """What the command's take_action and its hooks return, and what it prints beside it."""
    app, made, parsed = prepare(test, command, *arguments, admin=admin)
    taken = made._run_after_hooks(parsed, made.take_action(parsed))
    return taken, app.stderr.getvalue()


def shown(test: Any, command: type, *arguments: str, admin: bool = True) -> tuple[int, str, str]:
    """The exit status, and all that is printed: to standard output, and beside it."""
    app, made, parsed = prepare(test, command, *arguments, admin=admin)
    status = made.run(parsed)
    return status, app.stdout.getvalue(), app.stderr.getvalue()


class _CreateServer(command.ShowOne):  # type: ignore[misc]
    """As much of OpenStackClient's ``server create`` as tests ask of it"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("--flavor")
        parser.add_argument("--image")
        parser.add_argument("--wait", action="store_true")
        parser.add_argument("name")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        compute = self.app.client_manager.sdk_connection.compute
        server = compute.create_server(
            name=parsed_args.name,
            flavor_id=compute.find_flavor(parsed_args.flavor).id,
            image_id=parsed_args.image,
            networks="none",
        )
        return ("id", "name"), (server.id, server.name)


def prepare(test: Any, command: type, *arguments: str, admin: bool = True) -> tuple[Any, Any, Any]:
    """Return the client, whose ``stdout`` and ``stderr`` can be read, a command and its words."""
    app = SimpleNamespace(
        client_manager=SimpleNamespace(sdk_connection=connect(test, admin=admin)),
        command_manager=SimpleNamespace(
            find_command=lambda words: (_CreateServer, "", []), namespace="openstack.cli"
        ),
        stdout=io.StringIO(),
        stderr=io.StringIO(),
    )
    # By its name cliff finds the command's hooks.
    made = command(app, None, _names().get(f"{command.__module__}:{command.__name__}"))
    return app, made, made.get_parser("openstack").parse_args(list(arguments))


@functools.cache
def _names() -> Mapping[str, str]:
    """Return the commands' names by their entry points, whose reading takes long."""
    points = metadata.entry_points(group="openstack.gpu.v1")
    return {point.value: point.name.replace("_", " ") for point in points}


def rows(taken: tuple[Sequence[str], Any]) -> list[dict[str, Any]]:
    columns, values = taken
    return [dict(zip(columns, row, strict=True)) for row in values]
