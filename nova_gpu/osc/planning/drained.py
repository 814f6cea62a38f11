# SPDX-License-Identifier: Apache-2.0
"""Hosts that get no new instance with GPUs: the trait of their compute nodes that says so."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from osc_lib import exceptions

from nova_gpu.core import names
from nova_gpu.osc import rest

REASON = "it is drained"
# nova-compute writes the same provider, once in a minute.
_ATTEMPTS = 5


def nodes(connection: Any, trait: str = names.DRAINED) -> frozenset[str]:
    """The providers of the compute nodes that are drained, or have another trait"""
    answer = rest.placement(
        connection,
        f"/resource_providers?required={trait}",
        unknown_trait={"resource_providers": []},  # before the first
    )
    return frozenset(each["uuid"] for each in answer["resource_providers"])


def begin(connection: Any, node: str) -> None:
    """From now on no new instance gets GPUs below the provider *node*.

    :param connection: an openstack.connection.Connection
    :raises CommandError: where Placement does not take that
    """
    write(connection, node, {names.DRAINED}, ())


def end(connection: Any, node: str) -> None:
    """Undoes :func:`begin`."""
    write(connection, node, (), {names.DRAINED})


def write(connection: Any, node: str, added: Collection[str], removed: Collection[str]) -> None:
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
