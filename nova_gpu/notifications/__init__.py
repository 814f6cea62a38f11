# SPDX-License-Identifier: Apache-2.0
"""Notifications of what happens to GPUs, on Nova's own bus.

They go out as Nova's do: ``[notifications]notification_format`` says in which form, and
``[oslo_messaging_notifications]`` whether, where and how.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable

from nova import context as nova_context
from nova import rpc
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import events

LOG = logging.getLogger(__name__)

# A broker that is away for long: what is newer than these is not kept.
_MOST_WAITING = 1000


class Outbox:
    """Sends one after another, in a thread that ends when nothing is left.

    With RabbitMQ a notifier does not return before the broker has the message, by default for ever
    (``[oslo_messaging_notifications]retry``): no instance is to wait for that, nor to fail of it.
    A process that is forked off begins with a thread of its own at its first message.
    """

    def __init__(self, most_waiting: int = _MOST_WAITING) -> None:
        self._lock = threading.Lock()
        self._waiting: collections.deque[Callable[[], None]] = collections.deque()
        self._most_waiting = most_waiting
        self._thread: threading.Thread | None = None
        self._is_dropping = False

    def put(self, send: Callable[[], None]) -> None:
        """Returns at once. Where too many wait it is dropped, and the log says so, once."""
        with self._lock:
            if len(self._waiting) >= self._most_waiting:
                if not self._is_dropping:
                    LOG.warning(
                        "Notifications about GPUs are dropped: %d wait for the message broker",
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
                send()
            except Exception as error:  # whatever the transport raises
                LOG.warning("A notification about GPUs was not sent: %s", error)


_outbox = Outbox()


def emit(event: events.Event, context: nova_context.RequestContext | None = None) -> None:
    """Sends *event*, later and in the order of the calls. It raises nothing and waits for nobody.

    :param context: of the request that brought it about
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
        "nova_object.version": events.VERSION,
        "nova_object.data": payload,
    }
    for notifier, content in ((plain, payload), (versioned, envelope)):
        send = getattr(notifier, priority)
        _outbox.put(functools.partial(send, context, str(event.type), content))
