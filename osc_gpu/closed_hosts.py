# SPDX-License-Identifier: Apache-2.0
"""Hosts that a Placement trait closes to all new instances with GPUs, or to preemptible ones.

A host is the uuid of its compute node, which is also that of its root provider. ``connection`` is
an openstack.connection.Connection.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from oslo_utils import timeutils

from nova_gpu.core import names
from nova_gpu.core.placement import reserved_hosts
from osc_gpu import rest

DRAINED = "it is drained"


def drained(connection: Any) -> frozenset[str]:
    """Return the hosts that are drained, and so closed to all new instances with GPUs."""
    return with_trait(connection, names.DRAINED)


def kept_until(connection: Any) -> Mapping[str, datetime.datetime]:
    """Return until when, in UTC, hosts are closed to preemptible instances, by host."""
    until_by_host: dict[str, datetime.datetime] = {}
    for trait in reserved_hosts.in_force(
        kept_traits(connection, "&associated=true"), timeutils.utcnow()
    ):
        if end := reserved_hosts.until(trait):
            for node in with_trait(connection, trait):
                until_by_host[node] = max(end, until_by_host.get(node, end))
    return until_by_host


def in_words(until: datetime.datetime) -> str:
    return f"no preemptible instance until {until.isoformat(timespec='seconds')}Z"


def kept_traits(connection: Any, which: str = "") -> list[str]:
    """Return the traits that close hosts to preemptible instances until a time in their names.

    :param which: a further parameter of the query, such as ``&associated=true``
    """
    url = f"/traits?name=startswith:{names.KEPT_UNTIL}{which}"
    traits: list[str] = rest.placement(connection, url)["traits"]
    return traits


def with_trait(connection: Any, trait: str) -> frozenset[str]:
    """Return the uuids of the providers with the trait; empty if Placement lacks the trait."""
    answer = rest.placement(
        connection,
        f"/resource_providers?required={trait}",
        unknown_trait={"resource_providers": []},  # before the first
    )
    return frozenset(provider["uuid"] for provider in answer["resource_providers"])
