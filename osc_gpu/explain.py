# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu explain``: explains why a server is on its host, or on no host."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from osc_lib import exceptions

from nova_gpu.core.flavor import validation
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.printable import printable
from nova_gpu.core.scheduling import capacity
from nova_gpu.core.scheduling.capacity import Answer
from osc_gpu import failures, hosts, rest, servers
from osc_gpu.base_command import Lines
from osc_gpu.resource_request import Size

# Nova's faults if each host failed to start the server
_RETRIES = ("Exceeded maximum number of retries", "Exhausted all hosts available for retrying")
# The width that a terminal of 120 columns leaves
_COLUMN = 98


class ExplainServer(servers.ShowOneServer):
    """Explain why a server is on its host, or on none, and why an operation on it failed last.

    It also says how many like it each host could take. Only administrators see the hosts; all users
    who may see the server see its fault.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        connection = self.connection(parsed_args)
        server = servers.find(connection, parsed_args.server)
        shown: dict[str, Any] = {
            "id": server.id,
            "name": server.name,
            "status": server.status,
            "asked_for": servers.asked_for(server),
            "fault": printable((server.fault or {}).get("message", "")),
        }
        failed = failures.last_failed(connection, server)
        shown["last_failure"] = f"{failed.action} at {_in_utc(failed.start_time)}" if failed else ""
        if failed and not server.fault and (reason := failures.reason(connection, server, failed)):
            shown["failure_reason"] = Lines(reason, in_column)
        request = servers.request_of(server)
        if wrong := validation.mistakes(request):
            shown["why"] = Lines(["its flavor has mistakes", *wrong])
        elif not request.requests:
            chosen = ": nova-gpu did not choose its host" * bool(server.hypervisor_hostname)
            shown["why"] = Lines([f"its flavor asks for no GPU{chosen}"])
        else:
            try:
                from_volume = servers.boots_from_volume(server)
                size = Size.of(server.flavor, boots_from_volume=from_volume)
                answers = hosts.answers(connection, size, request)
                host = server.hypervisor_hostname
                shown["host"] = host or ""
                why = [*_why(connection, server, answers), *_remote(connection, server, request)]
                shown["why"] = Lines(why)
                shown["hosts"] = Lines([_reason(answer, host) for answer in answers], _line)
            except rest.NotPermitted:
                if not server.host_id:  # of a server on a host it is off the subject
                    self.say("Only administrators see the hosts, and what each has.")
        return tuple(shown), tuple(shown.values())


def _why(connection: Any, server: Any, answers: Sequence[Answer]) -> Iterator[str]:
    host = server.hypervisor_hostname
    others = [answer for answer in answers if answer.host != host]
    able = sum(other.instances > 0 for other in others)
    if server.status == "SHELVED_OFFLOADED":
        yield "it is shelved and has given its GPUs back"
        yield f"{_counted(able, len(others))} with GPUs could take it now"
    elif server.status == "BUILD":
        yield "it is being scheduled, or started"
    elif host:
        yield f"the scheduler chose {host}, which had what it asks for"
        yield f"{_counted(able, len(others), 'other ')} with GPUs could take it now"
        if able:
            yield "Nova keeps no record of why the weighers preferred its host"
    elif able:
        yield f"it is on no host, though {_counted(able, len(others))} with GPUs could take it now:"
        yield from _why_then(server)
        if together := _together(connection, server):
            could, _ = capacity.could_boot(answers)
            yield f"it is one of {together} servers of a request, of which Nova starts all or none"
            yield f"{could} of them could start now"
    elif others:
        yield "it is on no host, and none could take it now; the row hosts says why"
    else:
        yield "no host offers GPUs"


def _counted(able: int, total: int, other: str = "") -> str:
    """Return which hosts could take a server, as the subject of a sentence."""
    if not able:
        return f"no {other}host"
    if able == total:
        return f"the only {other}host" if total == 1 else f"all {total} {other}hosts"
    return f"{able} of {total} {other}hosts"


def _remote(connection: Any, server: Any, request: FlavorRequest) -> Iterator[str]:
    """Yield a line for each GPU that is on another NUMA node than the server's cells.

    Its host may have had no other when it was moved there, or its flavor permits them.
    """
    if not (server.hypervisor_hostname and request.requests):
        return
    # Its diagnostics are one more request. Its cells may come from its image.
    try:
        listed, _ = servers.cards(connection, server)
    except exceptions.CommandError as e:
        yield f"the NUMA nodes of its GPUs are unknown: {e}"
        return
    for card in listed:
        node, cells = card.get("numa_node"), card.get("cells")
        if node is not None and cells and str(node) not in cells.split(", "):
            yield (
                f"its GPU {card['address']} is on NUMA node {node}, and its processors and memory "
                f"are on {cells}"
            )


def _reason(answer: Answer, host: str | None) -> dict[str, Any]:
    return {
        "host": answer.host,
        "has_it": answer.host == host,
        "could_take": answer.instances,
        "reason": answer.reason,
    }


def _line(answer: Mapping[str, Any]) -> str:
    here = f"{answer['host']} (has it)" if answer["has_it"] else answer["host"]
    if answer["could_take"]:
        return f"{here}: could take {answer['could_take']}, then {answer['reason']}"
    return f"{here}: {answer['reason']}"


def _why_then(server: Any) -> Iterator[str]:
    """Yield lines that explain the fault of a server that found no host.

    The fault is about the time of that request; hosts may have other GPUs free now.
    """
    fault = (server.fault or {}).get("message", "")
    if failures.NOT_ENOUGH_HOSTS in fault:
        yield "Placement had a host for it when it was scheduled, as the fault names no resource;"
        yield "then the scheduler's filters refused each such host, or other requests of the same"
        yield "moment took the GPUs first; nova-scheduler's log says which"
    elif any(retry in fault for retry in _RETRIES):
        yield "each host that Nova tried failed to start it: nova-compute's log there says why"
    elif fault:
        yield "its fault is about the time of the request"


def _together(connection: Any, server: Any) -> int | None:
    """Return how many servers the request for *server* created in all, ``None`` if only one."""
    if not server.reservation_id:
        return None
    with rest.clean_refusals("Nova"):
        options = {"all_projects": True, "reservation_id": server.reservation_id}
        total = len(list(connection.compute.servers(details=False, **options)))
    return total if total > 1 else None


def in_column(text: str) -> str:
    """Return *text* wrapped to fit next to the row names on a terminal of 120 columns."""
    return textwrap.fill(text, _COLUMN, break_on_hyphens=False, break_long_words=False)


def _in_utc(time: str) -> str:
    """Return the UTC *time* of an instance action with the Z that Nova omits."""
    return time if time.endswith("Z") else f"{time}Z"
