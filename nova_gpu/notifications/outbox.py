# SPDX-License-Identifier: Apache-2.0
"""Sends in the background.

With RabbitMQ a notifier does not return before the broker has the message, by default for ever
(``[oslo_messaging_notifications]retry``): no instance is to wait for that, nor to fail of it.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

# A broker that is away for long: what is newer than these is not kept.
_MOST_WAITING = 1000

Send = Callable[[], None]


class Outbox:
    """Sends one after another in a thread that ends when nothing is left.

    A process that is forked off begins with a thread of its own at its first message.
    """

    def __init__(self, most_waiting: int = _MOST_WAITING) -> None:
        self._lock = threading.Lock()
        self._waiting: collections.deque[Send] = collections.deque()
        self._most_waiting = most_waiting
        self._thread: threading.Thread | None = None
        self._is_dropping = False

    def put(self, send: Send) -> None:
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
