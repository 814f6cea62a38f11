# SPDX-License-Identifier: Apache-2.0
"""Notifications about GPUs on Nova's bus: their types, payload and sending.

They are sent as Nova's are: ``[notifications]notification_format`` chooses the form, and
``[oslo_messaging_notifications]`` whether, where and how.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from nova import context as nova_context
from nova import rpc
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import boundary, device, printable
from nova_gpu.core.device import Device
from nova_gpu.core.model import Product

LOG = logging.getLogger(__name__)

# A broker that is away for long: what is newer than these is not kept.
_MOST_WAITING = 1000

# Of the payload; a field more raises the second number, any other change the first.
VERSION = "1.1"


class EventType(enum.StrEnum):
    """``event_type`` of a notification.

    ``service``: the sender, ``compute`` or ``scheduler``. ``is_error``: whether its priority is
    ERROR; else it is INFO. ``meaning``: when it is sent, in reStructuredText for the reference.
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
        "an instance no longer has its GPUs of this host: delete, a build that failed, shelve "
        "offload, the source of a move that was confirmed or live, the destination of a reverted "
        "one, a stop where ``gpu:on_stop`` says release",
    )
    FAULT = (
        *("gpu.fault", "compute", True),
        "new instances, or all instances, no longer get a card that was offered; sent again when "
        "nova-compute starts",
    )
    RECOVER = (
        *("gpu.recover", "compute", False),
        "such a card is offered again, as the same run of nova-compute sees",
    )
    REACHED = (
        *("gpu.reached", "compute", True),
        "a running LXC guest has device nodes that lead to a GPU that is not its own; told of its "
        "instance, and of each instance that has the GPU",
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
    """Something that happened to GPUs of one product, or to vGPUs of one type of it.

    The description next to each field of the payload is reStructuredText for the reference.
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
        "whose GPUs they are; null of a card that no instance has. Of gpu.quarantine after a "
        "release it is who had it.",
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
        "what is wrong and what to do about it; of gpu.recover what it was. "
        "Null of gpu.claim and gpu.release.",
    ] = None
    vgpu_type: Annotated[str | None, "of gpu.claim and gpu.release of vGPUs: ``nvidia-35``"] = None

    def of(self, instance_uuid: str, project_id: str | None) -> Event:
        """Return this event with the instance that has the GPUs."""
        return dataclasses.replace(self, instance_uuid=instance_uuid, project_id=project_id)

    @property
    def payload(self) -> dict[str, Any]:
        """The payload: plain values, printable texts, null for unknown or not applicable."""
        fields = dataclasses.asdict(self)
        del fields["type"]
        sent: dict[str, Any] = printable.within(fields | {"addresses": list(self.addresses)})
        return sent


def of_devices(
    event_type: EventType,
    products: Mapping[Device, Product],
    host: str,
    reason: str | None = None,
) -> Iterator[Event]:
    """Yield one event for each product among the devices, and for each vGPU type of it.

    :param products: the product of each device; that of a vGPU is its card's
    """
    alike: dict[tuple[Product, str | None], list[Device]] = {}
    for item, product in products.items():
        alike.setdefault((product, device.vgpu_type(item)), []).append(item)
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


class Outbox:
    """A queue of notifications, sent one by one in a thread that ends when the queue is empty.

    With RabbitMQ a notifier blocks until the broker has the message, by default without a limit
    (``[oslo_messaging_notifications]retry``). No instance may wait for that or fail because of it.
    A forked process starts a thread of its own with its first message.
    """

    def __init__(self, most_waiting: int = _MOST_WAITING) -> None:
        self._lock = threading.Lock()
        self._waiting: collections.deque[Callable[[], None]] = collections.deque()
        self._most_waiting = most_waiting
        self._thread: threading.Thread | None = None
        self._is_dropping = False

    def put(self, send: Callable[[], None]) -> None:
        """Queue *send*, and return at once.

        If too many messages wait, it is dropped, and a warning is logged once.
        """
        with self._lock:
            if len(self._waiting) >= self._most_waiting:
                if not self._is_dropping:
                    LOG.warning(
                        "Dropped notifications about GPUs: %d wait for the message broker",
                        len(self._waiting),
                    )
                self._is_dropping = True
                return
            self._waiting.append(send)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="nova-gpu-notifications", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    self._is_dropping = False
                    return
                send = self._waiting.popleft()
            try:
                with boundary.crossed():
                    send()
            except boundary.Failure as error:
                LOG.warning("Failed to send a notification about GPUs: %s", error)


_outbox = Outbox()


def emit(event: Event, context: nova_context.RequestContext | None = None) -> None:
    """Send *event* later, in the order of the calls.

    It neither raises nor blocks.

    :param context: the context of the request that caused the event
    """
    if rpc.LEGACY_NOTIFIER is None or rpc.NOTIFIER is None:
        return  # a command, not a service
    context = context or nova_context.get_admin_context()
    service = event.type.service
    priority = "error" if event.type.is_error else "info"
    # Of the two notifiers the one whose format is not wanted does nothing. The first is used by
    # itself, not through nova.rpc.get_notifier: that warns of every type it has no entry for.
    plain = rpc.LEGACY_NOTIFIER.prepare(publisher_id=f"{service}.{CONF.host}")
    versioned = rpc.NOTIFIER.prepare(publisher_id=f"nova-{service}:{CONF.host}")
    payload = event.payload
    envelope = {
        "nova_object.name": "GPUPayload",
        "nova_object.namespace": "nova_gpu",
        "nova_object.version": VERSION,
        "nova_object.data": payload,
    }
    for notifier, content in ((plain, payload), (versioned, envelope)):
        send = getattr(notifier, priority)
        _outbox.put(functools.partial(send, context, str(event.type), content))
