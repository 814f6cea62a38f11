# SPDX-License-Identifier: Apache-2.0
"""What is told to the rest of the cloud: the notifications' types and their payload."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from nova_gpu.core import device
from nova_gpu.core.device import Device
from nova_gpu.core.model import Product

# Of the payload; a field more raises the second number, any other change the first.
VERSION = "1.1"


class EventType(enum.StrEnum):
    """``event_type`` of a notification.

    ``service``: who tells it, ``compute`` or ``scheduler``. ``is_error``: whether its priority is
    ERROR; else it is INFO. ``meaning``: when it is told, in reStructuredText for the reference.
    """

    service: str
    is_error: bool
    meaning: str

    CLAIM = (
        *("gpu.claim", "compute", False),
        "a guest is about to start with GPUs that it did not have on this host: create, unshelve, "
        "the destination of a move, a start of one that gave its own back. Not at a reboot, a "
        "rebuild, a stop and start with the same ones.",
    )
    RELEASE = (
        *("gpu.release", "compute", False),
        "an instance has GPUs of this host no more: delete, a build that failed, shelve offload, "
        "the source of a move that was confirmed or live, the destination of a reverted one, a "
        "stop where ``gpu:on_stop`` says release",
    )
    NOTICE = (
        *("gpu.notice", "compute", False),
        "an instance was told when its GPUs are taken for others (``openstack gpu preempt``), or "
        "that they are not; told in a period, and again when nova-compute starts",
    )
    FAULT = (
        *("gpu.fault", "compute", True),
        "a card that was offered is given to nobody new, or to nobody; told again when "
        "nova-compute starts",
    )
    RECOVER = (
        *("gpu.recover", "compute", False),
        "such a card is offered again, as the same run of nova-compute sees",
    )
    QUARANTINE = "gpu.quarantine", "compute", True, "a card was put into quarantine"
    NO_VALID_HOST = (
        *("gpu.no_valid_host", "scheduler", True),
        "a request for GPUs was refused before a host was chosen",
    )

    def __new__(cls, value: str, service: str, is_error: bool, meaning: str) -> EventType:
        member = str.__new__(cls, value)
        member._value_ = value
        member.service, member.is_error, member.meaning = service, is_error, meaning
        return member


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """GPUs of one product, or vGPUs of one type of it, to which something happened.

    What each field of the payload is stands beside it, in reStructuredText for the reference.
    """

    type: EventType
    count: Annotated[
        int | None,
        "how many GPUs, of gpu.no_valid_host how many one instance asks for; null where the flavor "
        "cannot be understood",
    ]
    host: Annotated[
        str | None, "the compute host (``[DEFAULT]host``); null of gpu.no_valid_host"
    ] = None
    project_id: Annotated[str | None, "the instance's project"] = None
    instance_uuid: Annotated[
        str | None,
        "whose GPUs they are; null of a card that nobody has. Of gpu.quarantine after a release it "
        "is who had it.",
    ] = None
    addresses: Annotated[
        tuple[str, ...],
        "a list of PCI addresses, of vGPUs their slots (``0000:3b:00.0/nvidia-35/0``); empty of "
        "gpu.no_valid_host",
    ] = ()
    product_id: Annotated[str | None, "vendor and product id: ``10de:2335``"] = None
    product: Annotated[str | None, "the product's name"] = None
    architecture: Annotated[
        str | None,
        "``hopper``; of gpu.no_valid_host what the flavor asks for, as it reads in the fault",
    ] = None
    reason: Annotated[
        str | None,
        "what is wrong and what to do about it; of gpu.recover what it was, of gpu.notice what was "
        "told. Null of gpu.claim and gpu.release.",
    ] = None
    vgpu_type: Annotated[str | None, "of gpu.claim and gpu.release of vGPUs: ``nvidia-35``"] = None

    def of(self, instance_uuid: str, project_id: str | None) -> Event:
        """The event of an instance's GPUs"""
        return dataclasses.replace(self, instance_uuid=instance_uuid, project_id=project_id)

    @property
    def payload(self) -> dict[str, Any]:
        """What is sent: plain values, null for what is not known or does not apply"""
        fields = dataclasses.asdict(self)
        del fields["type"]
        return fields | {"addresses": list(self.addresses)}


def of_devices(
    event_type: EventType,
    products: Mapping[Device, Product],
    host: str,
    reason: str | None = None,
) -> Iterator[Event]:
    """One event for each product among the devices, and each type of vGPU of it.

    :param products: of each device, of a vGPU that of its card
    """
    alike: dict[tuple[Product, str | None], list[Device]] = {}
    for each, product in products.items():
        alike.setdefault((product, device.vgpu_type(each)), []).append(each)
    for (product, vgpu_type), same in alike.items():
        cards, slots = sorted(device.cards(same)), sorted(device.slots(same))
        yield Event(
            event_type,
            count=len(same),
            host=host,
            addresses=(*map(str, cards), *map(str, slots)),
            product_id=product.key,
            product=product.name,
            architecture=product.architecture,
            reason=reason,
            vgpu_type=vgpu_type,
        )
