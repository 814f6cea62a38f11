# SPDX-License-Identifier: Apache-2.0
"""Failed actions on a server, and their reasons, as far as Nova shows them to the user."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nova_gpu.core import names, refusal_texts
from nova_gpu.core.flavor.request import Request
from osc_gpu import rest, servers

# In Nova's fault if each host was refused after Placement had a candidate
NOT_ENOUGH_HOSTS = "There are not enough hosts available"
_DETAILS_POLICY = "os_compute_api:os-instance-actions:events:details"


def last_failed(connection: Any, server: Any) -> Any:
    """Return the last action that failed, or ``None``.

    A failed move does not show as a fault of the server, which stays on its host.
    """
    return next((action for action in _newest_first(connection, server) if action.message), None)


def last(connection: Any, server: Any) -> Any:
    """Return the server's last action, failed or not, or ``None``."""
    return next(iter(_newest_first(connection, server)), None)


def _newest_first(connection: Any, server: Any) -> list[Any]:
    with rest.clean_refusals("Nova"):
        actions = connection.compute.server_actions(server.id)
        return sorted(actions, key=lambda action: action.start_time, reverse=True)


def details(connection: Any, server: Any, failed: Any) -> list[str]:
    """Return what the host or the conductor reported about the action.

    The list is empty if Nova does not show that to the user.
    """
    with rest.clean_refusals("Nova"):
        action = connection.compute.get_server_action(failed.request_id, server.id)
    return [event["details"] for event in action.events or () if event.get("details")]


def why_last(connection: Any, server: Any) -> str | None:
    """Return the reason if the last action failed and Nova shows why, else ``None``."""
    done = last(connection, server)
    return next(iter(details(connection, server, done)), None) if done and done.message else None


def reason(connection: Any, server: Any, failed: Any) -> list[str]:
    """Return why the action failed, in the compute host's own words if Nova shows them.

    Otherwise return the known reasons for such a guest, and the command with which an administrator
    reads the host's words.
    """
    if texts := details(connection, server, failed):
        return texts[:1]
    requests = servers.requests_of(server)
    whole = any(request.resource_class == names.RESOURCE_CLASS for request in requests)
    if requests:
        known = refusal_texts.why(failed.action, container=_is_container(requests), whole=whole)
    else:
        known = refusal_texts.why_without_gpus(failed.action)
    return [
        *known,
        f"the host's own words are for administrators, by policy {_DETAILS_POLICY}:",
        f"openstack server event show {server.id} {failed.request_id}",
    ]


def _is_container(requests: Iterable[Request]) -> bool | None:
    """Return whether the flavor is for containers; ``None`` if it does not name a hypervisor."""
    for request in requests:
        for group in request.groups:
            for key, condition, _ in request.conditions(group):
                if key in (names.HYPERVISOR, names.HYPERVISOR_TYPE):
                    kinds = {kind for kind in (names.LXC, names.QEMU) if condition.matches(kind)}
                    return None if len(kinds) > 1 else kinds == {names.LXC}
    return None
