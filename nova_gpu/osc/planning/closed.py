# SPDX-License-Identifier: Apache-2.0
"""Hosts that get no new instance with GPUs, as an administrator empties them, and those that get no
preemptible one, as theirs are kept for who asked: the traits of their compute nodes that say so.

They are named by the provider of the compute node. ``connection`` is an
openstack.connection.Connection.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from osc_lib import exceptions
from oslo_utils import timeutils

from nova_gpu.core import names
from nova_gpu.core.placement import kept
from nova_gpu.osc import rest

DRAINED = "it is drained"
# nova-compute writes the same provider, once in a minute.
_ATTEMPTS = 5
# A scheduler that has read a trait names it in its next query, which Placement answers only as long
# as it knows the trait.
_STALE = datetime.timedelta(hours=1)


def drained(connection: Any) -> frozenset[str]:
    """The hosts that are drained"""
    return _with(connection, names.DRAINED)


def drain(connection: Any, node: str) -> None:
    """From now on no new instance gets GPUs below the provider *node*.

    :raises CommandError: where Placement does not take that
    """
    _write(connection, node, {names.DRAINED}, ())


def undrain(connection: Any, node: str) -> None:
    """Undoes :func:`drain`."""
    _write(connection, node, (), {names.DRAINED})


def kept_until(connection: Any) -> Mapping[str, datetime.datetime]:
    """The hosts that are kept now, and until when"""
    found: dict[str, datetime.datetime] = {}
    for trait in kept.in_force(_kept_traits(connection, "&associated=true"), timeutils.utcnow()):
        if end := kept.until(trait):
            for node in _with(connection, trait):
                found[node] = max(end, found.get(node, end))
    return found


def keep(connection: Any, node: str, until: datetime.datetime) -> None:
    """Keeps the GPUs below the provider *node* from preemptible instances.

    :raises CommandError: where Placement does not take that
    """
    _write(connection, node, {kept.trait(until)}, ())


def unkeep(connection: Any, nodes: Iterable[str]) -> None:
    """Undoes :func:`keep`, whatever the time was.

    :raises CommandError: where Placement does not take that
    """
    wanted = frozenset(nodes)
    for trait in _kept_traits(connection, "&associated=true"):
        for node in _with(connection, trait) & wanted:
            _write(connection, node, (), {trait})


def remove_stale(connection: Any) -> None:
    """Removes what nobody reads any more, as its time is over.

    :raises CommandError: where Placement does not take that
    """
    long_ago = timeutils.utcnow() - _STALE
    for trait in _kept_traits(connection):
        if (until := kept.until(trait)) and until < long_ago:
            for node in _with(connection, trait):
                _write(connection, node, (), {trait})
            rest.delete(connection, f"/traits/{trait}")


def in_words(until: datetime.datetime) -> str:
    return f"no preemptible instance until {until.isoformat(timespec='seconds')}Z"


def _kept_traits(connection: Any, which: str = "") -> list[str]:
    url = f"/traits?name=startswith:{names.KEPT_UNTIL}{which}"
    found: list[str] = rest.placement(connection, url)["traits"]
    return found


def _with(connection: Any, trait: str) -> frozenset[str]:
    answer = rest.placement(
        connection,
        f"/resource_providers?required={trait}",
        unknown_trait={"resource_providers": []},  # before the first
    )
    return frozenset(each["uuid"] for each in answer["resource_providers"])


def _write(connection: Any, node: str, added: Collection[str], removed: Collection[str]) -> None:
    """Gives the provider *node* traits, of which Placement need not know, and takes others.

    :raises CommandError: where Placement does not take that
    """
    for each in added:
        rest.put(connection, f"/traits/{each}")
    url = f"/resource_providers/{node}/traits"
    for _ in range(_ATTEMPTS):
        known = rest.placement(connection, url)
        traits = set(known["traits"]).difference(removed).union(added)
        if traits == set(known["traits"]):
            return
        generation = known["resource_provider_generation"]
        body = {"resource_provider_generation": generation, "traits": sorted(traits)}
        if rest.put(connection, url, body):
            return
    raise exceptions.CommandError(
        f"Placement's provider {node} is written by others all the time; run the command again"
    )
