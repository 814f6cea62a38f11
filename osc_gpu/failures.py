# SPDX-License-Identifier: Apache-2.0
"""Failed actions on a server, and their reasons, as far as Nova shows them to the user."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nova_gpu.core import names, operation_refusals
from nova_gpu.core.flavor.request import Request
from osc_gpu import rest, servers

# In Nova's fault if each host was refused after Placement had a candidate
NOT_ENOUGH_HOSTS = "There are not enough hosts available"
_DETAILS_POLICY = "os_compute_api:os-instance-actions:events:details"


def last_failed(connection: Any, server: Any) -> Any:
    """Return the server's newest failed action, even if later ones succeeded, or ``None``.

    A failed move leaves no fault on the server, which stays on its host.
    """
    return next((action for action in newest_first(connection, server) if action.message), None)


def newest_first(connection: Any, server: Any) -> list[Any]:
    """Return the server's actions, the newest first."""
    with rest.clean_refusals("Nova"):
        actions = connection.compute.server_actions(server.id)
        return sorted(actions, key=lambda action: action.start_time, reverse=True)


def details(connection: Any, server: Any, failed: Any) -> list[str]:
    """Return the errors of the action *failed*, or none if policy hides them from the user."""
    with rest.clean_refusals("Nova"):
        action = connection.compute.get_server_action(failed.request_id, server.id)
    return [event["details"] for event in action.events or () if event.get("details")]


def reason(connection: Any, server: Any, failed: Any) -> list[str]:
    """Return lines that say why the action *failed* failed: the compute host's own error, if shown.

    If policy hides it from the user, return the known reasons why Nova or nova-gpu refuse this
    action for such GPUs, and the command with which an administrator reads the error.
    """
    if texts := details(connection, server, failed):
        return texts[:1]
    requests = servers.requests_of(server)
    whole = any(request.resource_class == names.RESOURCE_CLASS for request in requests)
    if requests:
        known = operation_refusals.why(
            failed.action, container=_is_container(requests), whole=whole
        )
    else:
        known = operation_refusals.why_without_gpus(failed.action)
    return [
        *known,
        f"ask an administrator for the host's own words (policy {_DETAILS_POLICY}):",
        f"openstack server event show {server.id} {failed.request_id}",
    ]


def _is_container(requests: Iterable[Request]) -> bool | None:
    """Return whether the flavor requires LXC containers; ``None`` if it permits QEMU and LXC."""
    for request in requests:
        for group in request.groups:
            for key, condition, _ in request.conditions(group):
                if key in (names.HYPERVISOR, names.HYPERVISOR_TYPE):
                    kinds = {kind for kind in (names.LXC, names.QEMU) if condition.matches(kind)}
                    return None if len(kinds) > 1 else kinds == {names.LXC}
    return None
