# SPDX-License-Identifier: Apache-2.0
"""Closing hosts to new instances with GPUs, or to preemptible ones, and opening them again.

*node* is the uuid of a compute node and its root provider, which gets or loses a trait;
:mod:`osc_gpu.closed_hosts` reads these traits.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable
from typing import Any

from osc_lib import exceptions
from oslo_utils import timeutils

from nova_gpu_fleet.core import names
from nova_gpu_fleet.core.closed_hosts import RESERVED, reserving, until
from osc_gpu import closed_hosts, rest

# nova-compute writes to the same provider once a minute.
_ATTEMPTS = 5
# A scheduler that has read a trait names it in its next query, which fails if Placement has deleted
# the trait meanwhile.
_STALE = datetime.timedelta(hours=1)


def drain(connection: Any, node: str) -> None:
    """Close the compute node to all new instances with GPUs."""
    _write(connection, node, {names.DRAINED}, ())


def undrain(connection: Any, node: str) -> None:
    """Open a drained compute node to new instances with GPUs again."""
    _write(connection, node, (), {names.DRAINED})


def keep(connection: Any, node: str, end: datetime.datetime) -> None:
    """Close the compute node to preemptible instances until the time *end*, in UTC."""
    _write(connection, node, {reserving(end)}, ())


def unkeep(connection: Any, nodes: Iterable[str]) -> None:
    """Open *nodes* to preemptible instances again, before the time that :func:`keep` wrote."""
    wanted = frozenset(nodes)
    for trait in closed_hosts.named(connection, RESERVED, "&associated=true"):
        for node in closed_hosts.with_trait(connection, trait) & wanted:
            _write(connection, node, (), {trait})


def remove_stale(connection: Any) -> None:
    """Delete the traits of :func:`keep` whose time was over an hour ago, from all hosts."""
    long_ago = timeutils.utcnow() - _STALE
    for trait in closed_hosts.named(connection, RESERVED):
        if (end := until(trait)) and end < long_ago:
            for node in closed_hosts.with_trait(connection, trait):
                _write(connection, node, (), {trait})
            _delete(connection, f"/traits/{trait}")


def _write(connection: Any, node: str, added: Collection[str], removed: Collection[str]) -> None:
    """Add and remove traits of the provider *node*; create *added* ones that Placement lacks."""
    for trait in added:
        _put(connection, f"/traits/{trait}")
    url = f"/resource_providers/{node}/traits"
    for _ in range(_ATTEMPTS):
        known = rest.placement(connection, url)
        traits = set(known["traits"]).difference(removed).union(added)
        if traits == set(known["traits"]):
            return
        generation = known["resource_provider_generation"]
        body = {"resource_provider_generation": generation, "traits": sorted(traits)}
        if _put(connection, url, body):
            return
    raise exceptions.CommandError(
        f"Placement's provider {node} could not be written: others changed it during each of "
        f"{_ATTEMPTS} attempts; run the command again"
    )


def _put(connection: Any, url: str, body: Any = None) -> bool:
    """PUT *body* to *url* in Placement, and return whether it was written.

    It is not if another client changed the resource since the caller read it.

    :raises rest.NotPermitted: if the user may not write it
    """
    with rest.clean_refusals("Placement"):
        answer = connection.placement.put(
            url, json=body, microversion=rest.VERSION, raise_exc=False
        )
        if answer.status_code == 409:
            return False
        rest.judge("PUT", url, answer)
        return True


def _delete(connection: Any, url: str) -> None:
    """Delete the resource at *url* in Placement, unless it no longer exists or is in use."""
    with rest.clean_refusals("Placement"):
        answer = connection.placement.delete(url, microversion=rest.VERSION, raise_exc=False)
        if answer.status_code not in (404, 409):
            rest.judge("DELETE", url, answer)
