# SPDX-License-Identifier: Apache-2.0
"""Hosts that a Placement trait closes to new instances with GPUs, or to some of them.

A host is the uuid of its compute node, which is also that of its root provider. ``connection`` is
an openstack.connection.Connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oslo_utils import timeutils

from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.placement.closing_trait import ClosingTrait, declared
from osc_gpu import rest


def to_all(connection: Any) -> Mapping[str, str]:
    """Return why hosts are closed to all new instances with GPUs, by host."""
    return _of_several(connection, (trait for trait in declared() if not trait.concerns))


def to_some(connection: Any, request: FlavorRequest | None = None) -> Mapping[str, str]:
    """Return why hosts are closed to some new instances, or to those of *request*, by host."""
    traits = (trait for trait in declared() if trait.concerns)
    if request is not None:
        traits = (trait for trait in traits if trait.closes(request.extra_specs))
    return _of_several(connection, traits)


def _of_several(connection: Any, traits: Iterable[ClosingTrait]) -> Mapping[str, str]:
    reasons: dict[str, str] = {}
    for trait in traits:
        for node, reason in by_trait(connection, trait).items():
            reasons[node] = "; ".join(filter(None, (reasons.get(node), reason)))
    return reasons


def by_trait(connection: Any, trait: ClosingTrait) -> Mapping[str, str]:
    """Return why *trait* closes hosts now, by host. Of several such traits the last counts."""
    known = named(connection, trait, "&associated=true") if trait.is_in_force else [trait.name]
    return {
        node: trait.in_list(name)
        for name in sorted(trait.in_force(known, timeutils.utcnow()))
        for node in with_trait(connection, name)
    }


def named(connection: Any, trait: ClosingTrait, which: str = "") -> list[str]:
    """Return the traits whose names begin as that of *trait*.

    :param which: a further parameter of the query, such as ``&associated=true``
    """
    url = f"/traits?name=startswith:{trait.name}{which}"
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
