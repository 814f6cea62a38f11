# SPDX-License-Identifier: Apache-2.0
"""One instance, as Nova shows it to the user, and ``openstack gpu show``."""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openstack import exceptions as sdk_exc
from osc_lib import exceptions

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import request
from nova_gpu.core.flavor.parsers import OnStop
from nova_gpu.core.flavor.request import FlavorRequest, Request
from osc_gpu import base_command, flavors, group_list, rest
from osc_gpu.base_command import Lines

# The last microversion in which diagnostics are the driver's own
_DIAGNOSTICS = "2.47"
_FACT = re.compile(names.DIAGNOSTIC.format(r"(\d+)", "([a-z_]+)"))


class ShowOneServer(base_command.ShowOne):
    """A command that shows one server."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("server", metavar="<server>", help="Server (name or ID)")
        return parser


def find(connection: Any, name_or_id: str) -> Any:
    """Return the server of the user's project with this name or ID.

    If there is none, an administrator gets that of another project.

    :raises CommandError: if there is none, or several have the name
    """
    with rest.clean_refusals("Nova"):
        look_up = connection.compute.find_server
        server = look_up(name_or_id)
        if server is None:
            with contextlib.suppress(sdk_exc.ForbiddenException):
                server = look_up(name_or_id, all_projects=True)
        if server is None:
            raise sdk_exc.NotFoundException(f"No Server found for {name_or_id}")
        return connection.compute.get_server(server.id)


def get(connection: Any, uuid: str) -> Any:
    """Return the server as Nova shows it now."""
    with rest.clean_refusals("Nova"):
        return connection.compute.get_server(uuid)


def request_of(server: Any) -> FlavorRequest:
    """Return the GPU request of the flavor with which the server was created or resized."""
    return _request(tuple(((server.flavor or {}).get("extra_specs") or {}).items()))


@functools.lru_cache(maxsize=1024)
def _request(specs: tuple[tuple[str, str], ...]) -> FlavorRequest:
    """Return a request that is parsed once, for the thousands of servers that have it."""
    return request.of(dict(specs))


def boots_from_volume(server: Any) -> bool:
    """Return whether the server's root disk is a volume, which takes none of the flavor's disk."""
    return not (server.image and server.image.id)


def requests_of(server: Any) -> tuple[Request, ...]:
    """Return the requests for whole cards and for vGPUs; empty if the flavor has mistakes."""
    try:
        return request_of(server).requests
    except exception.InvalidExtraSpec:
        return ()


def gave_back(server: Any) -> bool:
    """Return whether the server is stopped and its flavor releases GPUs at a stop."""
    try:
        releases = request_of(server).on_stop is OnStop.RELEASE
    except exception.InvalidExtraSpec:
        return False
    return releases and server.status == "SHUTOFF" and not server.task_state


def asked_for(server: Any) -> str:
    """Return the GPU request of the server's flavor as text, or the flavor's mistakes."""
    return flavors.asked_for(request_of(server))


def cards(connection: Any, server: Any) -> tuple[list[dict[str, Any]], str]:
    """Return the facts about each GPU in a server's diagnostics, and why there are none.

    The reason is empty if there are some.
    """
    with rest.clean_refusals("Nova"):
        answer = connection.compute.get(
            f"/servers/{server.id}/diagnostics", microversion=_DIAGNOSTICS
        )
        if answer.status_code in (400, 404, 409, 501):
            return [], f"Nova has no diagnostics of a server that is {server.status}"
        sdk_exc.raise_from_response(answer)
        cards_by_number: dict[int, dict[str, Any]] = defaultdict(dict)
        for key, value in answer.json().items():
            if match := _FACT.fullmatch(key):
                cards_by_number[int(match[1])][match[2]] = value
    listed = [cards_by_number[number] for number in sorted(cards_by_number)]
    return listed, "" if listed else "its host reports none, or runs an older nova-gpu"


class ShowServer(ShowOneServer):
    """Show a server's GPUs: what its flavor asks for, what it has, and on which cards.

    The cards come from its diagnostics, while its guest runs. Only administrators see more than
    what the flavor asks for.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        connection = self.connection(parsed_args)
        server = find(connection, parsed_args.server)
        shown: dict[str, Any] = {
            "id": server.id,
            "name": server.name,
            "status": server.status,
            "project_id": server.project_id,
            "asked_for": asked_for(server),
        }
        try:
            shown.update(_held(connection, server))
        except rest.NotPermitted:
            self.say("Only administrators see which GPUs a server has, and on which host.")
        return tuple(shown), tuple(shown.values())


def _held(connection: Any, server: Any) -> dict[str, Any]:
    """Return the rows about what the server has: its host, and its GPUs by group and by card."""
    held = group_list.of_instance(connection, server.id)
    try:
        listed, reason = cards(connection, server) if held else ([], "")
    except exceptions.CommandError as e:  # all else is known
        listed, reason = [], f"unknown: {e}"
    return {
        "host": server.hypervisor_hostname or "",
        "gpus": sum(amount for _, amount in held),
        "groups": Lines([_described(*use) for use in held], _group),
        "cards": Lines(listed, _card) if listed else reason,
    }


def _group(card: Mapping[str, Any]) -> str:
    kind = f"{card['model']}, {card['architecture']}, {card['mode']}"
    return f"{card['gpus']} of {card['product']} ({kind}) on {card['host']}"


def _card(card: Mapping[str, Any]) -> str:
    """Return a line about a card.

    :param card: the card's facts in the diagnostics (:data:`nova_gpu.core.names.DIAGNOSTIC`); only
        the address if the card no longer exists
    """
    text = card.get("address", "")
    if product := card.get("product"):
        text += f" {card.get('name') or 'unknown'} ({product})"
    if card.get("numa_node") is not None:
        text += f", NUMA node {card['numa_node']}"
    if cells := card.get("cells"):
        text += f", cells on NUMA {cells}"
    if card.get("module") is not None:
        text += f", module {card['module']}"
    return f"{text}: {card['trouble']}" if card.get("trouble") else text


def _described(provider: group_list.Provider, amount: int) -> dict[str, Any]:
    return {
        "host": provider.host,
        "gpus": amount,
        "product": provider.product,
        "model": provider.model,
        "architecture": provider.architecture,
        "mode": provider.mode,
    }
