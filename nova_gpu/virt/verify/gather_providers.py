# SPDX-License-Identifier: Apache-2.0
"""Asks Placement about a host's groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from nova import context as nova_context

from nova_gpu.core import device, names
from nova_gpu.core.model import GPU, DeliveryMode, PciAddress
from nova_gpu.virt.inventory import offer, placement
from nova_gpu.virt.verify.sources import Provider


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """``obstacle``: why it cannot be given to a guest"""

    gpu: GPU
    obstacle: str | None


def read(
    client: Any,
    context: nova_context.RequestContext,
    nodename: str,
    mode: DeliveryMode,
    cards: Mapping[PciAddress, Card],
) -> dict[str, Provider]:
    """The host's groups by uuid.

    :param client: Nova's report client
    :param mode: in which the host gives *cards*, those that are whole
    """
    root = client.get_provider_by_name(context, nodename)["uuid"]
    providers = {}
    for each in client.get_providers_in_tree(context, root):
        key = names.parse_provider_name(nodename, each["name"])
        if key is None:
            continue
        resource_class = device.resource_class_of(key)
        uuid = each["uuid"]
        inventory = _inventory(client, uuid, resource_class)
        allocations = client.get_allocations_for_resource_provider(context, uuid).allocations
        own = {
            address: card.obstacle is None
            for address, card in cards.items()
            if offer.group_key(card.gpu, mode) == key
        }
        providers[uuid] = Provider(
            name=each["name"],
            total=inventory.get("total", 0),
            reserved=inventory.get("reserved", 0),
            allocated={
                consumer: allocation["resources"][resource_class]
                for consumer, allocation in allocations.items()
                if resource_class in allocation["resources"]
            },
            cards=frozenset(own),
            fit=frozenset(address for address, is_fit in own.items() if is_fit),
            resource_class=resource_class,
        )
    return providers


def _inventory(client: Any, provider_uuid: str, resource_class: str) -> Mapping[str, int]:
    answer = placement.get(client, f"/resource_providers/{provider_uuid}/inventories")
    inventory: Mapping[str, int] = answer["inventories"].get(resource_class, {})
    return inventory
