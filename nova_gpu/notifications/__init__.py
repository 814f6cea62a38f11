# SPDX-License-Identifier: Apache-2.0
"""Notifications about GPUs on Nova's message bus: their types, payload and sending.

Nova's options apply to them: ``[notifications]notification_format`` chooses the form, and
``[oslo_messaging_notifications]`` whether, where and how they are sent.
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

# If the broker is away for long, newer notifications than these are dropped.
_MOST_WAITING = 1000

# The version of the payload: a new field increases the second number, any other change the first.
VERSION = "1.2"


class EventType(enum.StrEnum):
    """The ``event_type`` of a notification.

    ``service``: the sender, ``compute`` or ``scheduler``. ``is_error``: whether its priority is
    ERROR; else it is INFO. ``meaning``: when it is sent, in reStructuredText for the reference.
    """

    service: str
    is_error: bool
    meaning: str

    CLAIM = (
        *("gpu.claim", "compute", False),
        "a guest is about to start with GPUs that it did not have on this host: create, unshelve, "
        "the destination of a move, a start of an instance that gave its GPUs back. Not sent at a "
        "reboot, a rebuild, or a stop and start with the same GPUs.",
    )
    RELEASE = (
        *("gpu.release", "compute", False),
        "an instance no longer has its GPUs of this host: delete, a build that failed, shelve "
        "offload, the source of a confirmed or live move, the destination of a reverted move, a "
        "stop with ``gpu:on_stop=release``",
    )
    EXISTS = (
        *("gpu.exists", "compute", False),
        "a full hour is over in which an instance had GPUs on this host, and three times more "
        "after its last one, with ``gpu_seconds`` 0; only with ``[DEFAULT]instance_usage_audit``",
    )
    FAULT = (
        *("gpu.fault", "compute", True),
        "new instances, or all instances, no longer get a card that was offered; sent again when "
        "nova-compute starts",
    )
    RECOVER = (
        *("gpu.recover", "compute", False),
        "such a card is offered again in the same run of nova-compute",
    )
    REACHED = (
        *("gpu.reached", "compute", True),
        "a running LXC guest has device nodes that lead to a GPU that is not its own; sent for its "
        "instance, and for each instance that has the GPU",
    )
    QUARANTINE = "gpu.quarantine", "compute", True, "a card was put into quarantine"
    PASSPORT = (
        *("gpu.passport", "compute", False),
        "the passport of a card has a new event: its place, a fault or its end, a test, a "
        "cleaning, its driver or firmware, or an operator's note",
    )
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
    """A notification before it is sent: what happened to GPUs of one product or vGPUs of one type.

    The description next to each field of the payload is reStructuredText for the reference.
    """

    type: EventType
    count: Annotated[
        int | None,
        "the number of GPUs; for gpu.no_valid_host the number that one instance asks for, null if "
        "the flavor is invalid",
    ]
    host: Annotated[
        str | None, "the compute host (``[DEFAULT]host``); null for gpu.no_valid_host"
    ] = None
    project_id: Annotated[str | None, "the instance's project"] = None
    instance_uuid: Annotated[
        str | None,
        "the instance that has the GPUs; null for a card that no instance has. For gpu.quarantine "
        "after a release it is the instance that had the card.",
    ] = None
    addresses: Annotated[
        tuple[str, ...],
        "a list of PCI addresses, for vGPUs of slots (``0000:3b:00.0/nvidia-35/0``); empty for "
        "gpu.no_valid_host",
    ] = ()
    product_id: Annotated[str | None, "vendor and product id: ``10de:2335``"] = None
    product: Annotated[str | None, "the product's name"] = None
    architecture: Annotated[
        str | None,
        "``hopper``; for gpu.no_valid_host the flavor's condition, as in the fault",
    ] = None
    reason: Annotated[
        str | None,
        "what is wrong and what to do about it; for gpu.recover what was wrong. For gpu.claim what "
        "the flavor requires of the GPUs, if no such GPUs were left for an instance that Nova "
        "starts on no other host. Null for other gpu.claim, and for gpu.release.",
    ] = None
    vgpu_type: Annotated[
        str | None, "for gpu.claim, gpu.release and gpu.exists of vGPUs: ``nvidia-35``"
    ] = None
    user_id: Annotated[str | None, "for gpu.exists the instance's user"] = None
    usage_id: Annotated[
        str | None,
        "for gpu.exists: the same for all that are about one stay of the instance on the host with "
        "GPUs of this product",
    ] = None
    audit_period_beginning: Annotated[
        str | None, "for gpu.exists the begin of the hour: ``2026-11-01T09:00:00+00:00``"
    ] = None
    audit_period_ending: Annotated[str | None, "for gpu.exists the end of the hour"] = None
    gpu_seconds: Annotated[
        float | None,
        "for gpu.exists: the seconds of the hour in which the instance had GPUs of this product, "
        "times their number",
    ] = None
    total_gpu_seconds: Annotated[
        float | None,
        "for gpu.exists: the sum of ``gpu_seconds`` of all notifications with this ``usage_id`` up "
        "to this one, lost ones included",
    ] = None

    def of(self, instance_uuid: str, project_id: str | None) -> Event:
        """Return this event with the instance that has the GPUs, and its project."""
        return dataclasses.replace(self, instance_uuid=instance_uuid, project_id=project_id)

    @property
    def payload(self) -> dict[str, Any]:
        """The payload of the notification: all fields but ``type``.

        Texts are made printable. ``None`` stands for unknown or not applicable.
        """
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
    """Yield one event for each product, and one for each vGPU type of each product.

    :param products: the product of each device of the event; for a vGPU, that of its card
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
        """Queue *send*, which sends one notification, and return at once.

        If too many notifications wait, *send* is dropped. The first drop is logged, and again the
        first after the queue was empty.
        """
        with self._lock:
            if len(self._waiting) >= self._most_waiting:
                if not self._is_dropping:
                    LOG.warning(
                        "Dropping notifications about GPUs: %d wait for the message broker",
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
                LOG.warning("Failed to send a notification about GPUs, dropped it: %s", error)

    def wait(self, deadline_s: float) -> None:
        """Wait until the queue is empty, at most for *deadline_s*."""
        if (thread := self._thread) is not None:
            thread.join(deadline_s)


_outbox = Outbox()


def wait(deadline_s: float) -> None:
    """Wait until all notifications are sent; a command ends afterwards, and its threads with it."""
    _outbox.wait(deadline_s)


def emit(event: Event, context: nova_context.RequestContext | None = None) -> None:
    """Queue *event* for sending; neither raise nor block.

    Events are sent in the order of the calls. A process without Nova's notifiers sends none.
    """
    if rpc.LEGACY_NOTIFIER is None or rpc.NOTIFIER is None:
        return  # a command, not a service
    context = context or nova_context.get_admin_context()
    service = event.type.service
    priority = "error" if event.type.is_error else "info"
    # Of the two notifiers the one whose format is not configured does nothing. The first is used
    # directly, not through nova.rpc.get_notifier, which warns of every type that it has no entry
    # for.
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
