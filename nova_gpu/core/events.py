# SPDX-License-Identifier: Apache-2.0
"""What is told to the rest of the cloud: the notifications' types and their payload."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator
from typing import Any

from nova_gpu.core.model import GPU, Product
from nova_gpu.core.vgpu import Slot

# Of the payload; a field more raises the second number, any other change the first.
VERSION = "1.1"


class EventType(enum.StrEnum):
    """``event_type`` of a notification."""

    CLAIM = "gpu.claim"
    RELEASE = "gpu.release"
    FAULT = "gpu.fault"
    RECOVER = "gpu.recover"
    QUARANTINE = "gpu.quarantine"
    NO_VALID_HOST = "gpu.no_valid_host"

    @property
    def is_error(self) -> bool:
        """Whether its priority is ERROR; else it is INFO"""
        return self in (EventType.FAULT, EventType.QUARANTINE, EventType.NO_VALID_HOST)


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """GPUs of one product, or vGPUs of one type of it, to which something happened.

    :param host: the compute host (``[DEFAULT]host``), ``None`` of what no host has
    :param instance_uuid: whose they are, ``None`` where they are nobody's
    :param addresses: PCI addresses, or the vGPUs' slots
    :param product_id: ``10de:2335``
    :param product: its name
    :param architecture: ``hopper``; of GPUs that were asked for in vain, what the flavor says
    :param count: how many GPUs it is about, ``None`` where a flavor does not say it
    :param reason: what is wrong, and what to do about it
    :param vgpu_type: ``nvidia-35``, ``None`` of whole GPUs
    """

    type: EventType
    count: int | None
    host: str | None = None
    project_id: str | None = None
    instance_uuid: str | None = None
    addresses: tuple[str, ...] = ()
    product_id: str | None = None
    product: str | None = None
    architecture: str | None = None
    reason: str | None = None
    vgpu_type: str | None = None

    def of(self, instance_uuid: str, project_id: str | None) -> Event:
        """The same of an instance's GPUs"""
        return dataclasses.replace(self, instance_uuid=instance_uuid, project_id=project_id)

    @property
    def payload(self) -> dict[str, Any]:
        """What is sent: plain values, null for what is not known or does not apply"""
        fields = dataclasses.asdict(self)
        del fields["type"]
        return fields | {"addresses": list(self.addresses)}


def of_cards(
    event_type: EventType, cards: Iterable[GPU], host: str, reason: str | None = None
) -> Iterator[Event]:
    """One event for each product among *cards*."""
    by_product: dict[Product, list[GPU]] = {}
    for card in cards:
        by_product.setdefault(card.product, []).append(card)
    for product, same in by_product.items():
        yield Event(
            event_type,
            count=len(same),
            host=host,
            addresses=tuple(str(card.address) for card in sorted(same, key=lambda c: c.address)),
            product_id=product.key,
            product=product.name,
            architecture=product.architecture,
            reason=reason,
        )


def of_vgpus(
    event_type: EventType, vgpus: Iterable[tuple[Product, Slot]], host: str
) -> Iterator[Event]:
    """One event for each type of each product among *vgpus*, each of which is with the product of
    its card."""
    by_type: dict[tuple[Product, str], list[Slot]] = {}
    for product, slot in vgpus:
        by_type.setdefault((product, slot.type_id), []).append(slot)
    for (product, type_id), same in by_type.items():
        yield Event(
            event_type,
            count=len(same),
            host=host,
            addresses=tuple(map(str, sorted(same))),
            product_id=product.key,
            product=product.name,
            architecture=product.architecture,
            vgpu_type=type_id,
        )
