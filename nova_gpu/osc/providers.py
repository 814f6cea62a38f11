# SPDX-License-Identifier: Apache-2.0
"""The groups of GPUs as Placement has them, of all hosts or of one instance."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from nova_gpu.core import names
from nova_gpu.core.fabric import published
from nova_gpu.core.model import GroupKey
from nova_gpu.core.scheduling.capacity import Group
from nova_gpu.osc import hosts, rest

_UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    """A group of GPUs. ``host`` is the compute node's name, ``unusable`` why nothing is started
    there, ``key`` what the provider's name says: ``None`` of one that somebody else has made."""

    uuid: str
    host: str
    unusable: str | None
    key: GroupKey | None
    resource_class: str
    group: Group

    @property
    def product(self) -> str:
        """``10de:1091``"""
        return f"{self.key.vendor_id}:{self.key.product_id}" if self.key else _UNKNOWN

    @property
    def mode(self) -> str:
        if self.key is None:
            return _UNKNOWN
        mode = str(self.key.mode)
        return f"{mode} {self.key.vgpu_type}" if self.key.vgpu_type else mode

    @property
    def architecture(self) -> str:
        return self._said(names.TRAIT_ARCHITECTURE)

    @property
    def model(self) -> str:
        """The model in the form that ``gpu:model`` of a flavor is compared with"""
        return self._said(names.TRAIT_MODEL)

    def _said(self, prefix: str) -> str:
        return ", ".join(sorted(names.known_values(prefix, self.group.traits))) or _UNKNOWN


def read(connection: Any) -> list[Provider]:
    """The groups of all hosts, by host and product. That takes a request for each that has GPUs
    free, and three for any other.

    :param connection: an openstack.connection.Connection
    :raises Refused: where Placement does not show them to whoever asks
    """
    nodes = hosts.compute_nodes(connection)
    free: dict[str, Any] = {}
    for resource_class in names.RESOURCE_CLASSES:
        free.update(hosts.with_free(connection, resource_class))
    found: list[Provider] = []
    for each in hosts.gpu_providers(connection):
        root = each["root_provider_uuid"]
        node = nodes.get(root) or hosts.nameless(connection, root)
        found += _providers(connection, each, *node, free.get(each["uuid"]))
    return sorted(found, key=lambda each: (each.host, each.product, each.mode))


def of_instance(connection: Any, uuid: str) -> list[tuple[Provider, int]]:
    """The providers that an instance or a move has allocations of, with the GPUs of each.

    :raises Refused: as :func:`read`
    """
    found: list[tuple[Provider, int]] = []
    allocations = rest.placement(connection, f"/allocations/{uuid}")["allocations"]
    held = {
        provider: allocation["resources"]
        for provider, allocation in allocations.items()
        if allocation["resources"].keys() & set(names.RESOURCE_CLASSES)
    }
    for provider, resources in held.items():
        described = rest.placement(connection, f"/resource_providers/{provider}")
        host, _ = hosts.nameless(connection, described["root_provider_uuid"])
        found += [
            (each, resources[each.resource_class])
            for each in _providers(connection, described, host, None)
            if each.resource_class in resources
        ]
    return found


def allocations(connection: Any, provider: Provider) -> Iterator[tuple[str, int]]:
    """The consumers that have GPUs of *provider*, each with how many

    :raises Refused: where Placement does not show them to whoever asks
    """
    if not provider.group.used:
        return
    url = f"/resource_providers/{provider.uuid}/allocations"
    found = rest.placement(connection, url, missing={"allocations": {}})["allocations"]
    for consumer, allocation in found.items():
        if amount := allocation["resources"].get(provider.resource_class):
            yield consumer, amount


def _providers(
    connection: Any,
    described: Mapping[str, str],
    host: str,
    unusable: str | None,
    summary: Mapping[str, Any] | None = None,
) -> Iterator[Provider]:
    """A Provider for each class of GPUs that the resource provider has; none where it is gone.

    :param summary: as :func:`nova_gpu.osc.hosts.with_free` has it, which spares two requests
    """
    url = f"/resource_providers/{described['uuid']}"

    def get(noun: str) -> Any:
        return rest.placement(connection, f"{url}/{noun}", missing={noun: {}})[noun]

    inventories = get("inventories")
    there = [each for each in names.RESOURCE_CLASSES if each in inventories]
    if not there:
        return
    if summary:
        traits = frozenset(summary["traits"])
        usages = {each: counted["used"] for each, counted in summary["resources"].items()}
    else:
        traits, usages = frozenset(get("traits")), get("usages")
    key = names.parse_provider_name(host, described["name"])
    for each in there:
        own = inventories[each]
        used = usages.get(each, 0)
        group = Group(
            *(own["total"], own["reserved"], used, traits, published.board(traits)),
            max_unit=own["max_unit"],
        )
        yield Provider(described["uuid"], host, unusable, key, each, group)
