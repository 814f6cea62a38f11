# SPDX-License-Identifier: Apache-2.0
"""Hosts whose GPUs no preemptible instance gets, so that who asked for them has them: until when,
by the provider of the compute node."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from oslo_utils import timeutils

from nova_gpu.core import names
from nova_gpu.core.placement import kept
from nova_gpu.osc import rest
from nova_gpu.osc.planning import drained

# A scheduler that has read a trait names it in its next query, which Placement answers only as long
# as it knows the trait.
_STALE = datetime.timedelta(hours=1)

Times = Mapping[str, datetime.datetime]


def read(connection: Any) -> Times:
    """The hosts that are kept now"""
    found: dict[str, datetime.datetime] = {}
    for trait in kept.in_force(_traits(connection, "&associated=true"), timeutils.utcnow()):
        if end := kept.until(trait):
            for node in drained.nodes(connection, trait):
                found[node] = max(end, found.get(node, end))
    return found


def begin(connection: Any, node: str, until: datetime.datetime) -> None:
    """Keeps the GPUs below the provider *node* from preemptible instances.

    :param connection: an openstack.connection.Connection
    :raises CommandError: where Placement does not take that
    """
    drained.write(connection, node, {kept.trait(until)}, ())


def end(connection: Any, nodes: Iterable[str]) -> None:
    """Undoes :func:`begin`, whatever the time was.

    :raises CommandError: where Placement does not take that
    """
    wanted = frozenset(nodes)
    for trait in _traits(connection, "&associated=true"):
        for node in drained.nodes(connection, trait) & wanted:
            drained.write(connection, node, (), {trait})


def clean(connection: Any) -> None:
    """Removes what nobody reads any more, as its time is over.

    :raises CommandError: where Placement does not take that
    """
    long_ago = timeutils.utcnow() - _STALE
    for trait in _traits(connection):
        if (until := kept.until(trait)) and until < long_ago:
            for node in drained.nodes(connection, trait):
                drained.write(connection, node, (), {trait})
            rest.delete(connection, f"/traits/{trait}")


def in_words(until: datetime.datetime) -> str:
    return f"no preemptible instance until {until.isoformat(timespec='seconds')}Z"


def _traits(connection: Any, which: str = "") -> list[str]:
    url = f"/traits?name=startswith:{names.KEPT_UNTIL}{which}"
    found: list[str] = rest.placement(connection, url)["traits"]
    return found
