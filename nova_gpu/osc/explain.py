# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu explain``"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_gpu.core.flavor import mistakes
from nova_gpu.core.scheduling.capacity import Answer
from nova_gpu.osc import hosts, query, rest, servers
from nova_gpu.osc.lines import Lines

_NOT_COUNTED = (
    "or what kept it away is not counted by Placement: aggregates, zones, images, server groups"
)


class ExplainServer(servers.ShowOne):
    """Say why a server is on its host, or why it is on none, and what each host could do for it.

    How it stands with hosts is for administrators; a server's own fault everybody reads who sees
    the server.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        connection = self.app.client_manager.sdk_connection
        server = servers.find(connection, parsed_args.server)
        shown: dict[str, Any] = {
            "id": server.id,
            "name": server.name,
            "status": server.status,
            "asked_for": servers.asked_for(server),
            "fault": (server.fault or {}).get("message", ""),
            "last_failure": _last_failure(connection, server),
        }
        if wrong := mistakes.mistakes(servers.extra_specs(server)):
            shown["why"] = Lines(["its flavor has mistakes", *wrong])
        elif not servers.requests_of(server):
            shown["why"] = Lines(["it asks for no GPU: nova-gpu has no part in where it is"])
        else:
            try:
                from_volume = not (server.image and server.image.id)
                size = query.Size.of(server.flavor, boots_from_volume=from_volume)
                answers = hosts.answers(connection, size, servers.extra_specs(server))
                host = server.hypervisor_hostname
                shown["host"] = host or ""
                shown["why"] = Lines(_why(server, answers))
                shown["hosts"] = Lines([_told(each, host) for each in answers], _line)
            except rest.Refused:
                print(
                    "What hosts have, and why none has room, is for administrators.",
                    file=self.app.stderr,
                )
        return tuple(shown), tuple(shown.values())


def _why(server: Any, answers: Sequence[Answer]) -> Iterator[str]:
    host = server.hypervisor_hostname
    others = [each for each in answers if each.host != host]
    able = sum(each.instances > 0 for each in others)
    if server.status == "SHELVED_OFFLOADED":
        yield "it is shelved and has given its GPUs back"
        yield f"{able} of {len(others)} hosts with GPUs could take it now"
    elif server.status == "BUILD":
        yield "it is being scheduled, or started"
    elif host:
        yield f"the scheduler chose {host}, which had what it asks for"
        yield f"{able} of {len(others)} other hosts with GPUs could take it now"
        if able:
            yield "among several the weighers choose, and Nova keeps no record of why"
    elif able:
        yield f"it is on no host, though {able} of {len(others)} with GPUs could take it now:"
        yield "GPUs came free since, or its compute host failed to start it,"
        yield _NOT_COUNTED
    elif others:
        yield "it is on no host, and none could take it now; hosts says why"
    else:
        yield "no host offers GPUs"


def _told(answer: Answer, host: str | None) -> dict[str, Any]:
    return {
        "host": answer.host,
        "has_it": answer.host == host,
        "could_take": answer.instances,
        "reason": answer.reason,
    }


def _line(told: Mapping[str, Any]) -> str:
    here = f"{told['host']} (has it)" if told["has_it"] else told["host"]
    if told["could_take"]:
        return f"{here}: could take {told['could_take']}, then {told['reason']}"
    return f"{here}: {told['reason']}"


def _last_failure(connection: Any, server: Any) -> str:
    """Of a move the server itself shows no fault: it goes on where it was."""
    with rest.clean_refusals("Nova"):
        actions = connection.compute.server_actions(server)
        failed = max(
            (each for each in actions if each.message),
            key=lambda each: each.start_time,
            default=None,
        )
        if failed is None:
            return ""
        action = connection.compute.get_server_action(failed.request_id, server)
    # Nova's own policy shows them to administrators.
    details = [each["details"] for each in action.events or () if each.get("details")]
    if server.fault:
        details = []  # they say the same
    return ": ".join([f"{failed.action} at {failed.start_time}", *details[:1]])
