# SPDX-License-Identifier: Apache-2.0
"""The message bus between nova-compute, a process of its own, and the rest of the cloud.

As a broker does it: what is sent to a service that is down waits for it, what a service was given
when it died is lost, and who waits for an answer from it gets none.
"""

from __future__ import annotations

import collections
import queue
import sys
import threading
import time
from typing import Any

import oslo_messaging
from nova import rpc
from oslo_messaging._drivers import base, common

from tests.cloud import wire

# What the fixtures of Nova's tests put into a context; no bus carries it.
_UNCARRIED = ("db_connection", "mq_connection")
# How many messages are remembered
_GIVEN = 30
_Reply = tuple[Any, str | None]


class Exchange:
    """In the cloud's process: between its own bus, in memory, and the compute service's link."""

    def __init__(self) -> None:
        self._listeners: list[Any] = []
        self._link: wire.Link | None = None
        # What services were given last: when, what, and how long ago they answered, if they did
        self._deliveries: collections.deque[list[Any]] = collections.deque(maxlen=_GIVEN)

    def attach(self, link: wire.Link) -> None:
        self._link = link

    def detach(self) -> None:
        """What comes from now on waits for the next service."""
        for listener in self._listeners:
            listener.stop()
        self._listeners.clear()

    def given(self) -> list[str]:
        """Return what services were given last, and what of it they have not answered."""
        now, lines = time.monotonic(), []
        for at, method, answered in list(self._deliveries):
            end = f"answered {now - answered:.1f} s ago" if answered else "not answered"
            lines.append(f"{method}, given {now - at:.1f} s ago: {end}")
        return lines

    def send(
        self, target: oslo_messaging.Target, ctxt: Any, message: Any, wait: bool, timeout: float
    ) -> _Reply:
        try:
            answer = rpc.TRANSPORT._send(
                target, ctxt, message, wait_for_reply=wait, timeout=timeout
            )
        except Exception:
            return None, common.serialize_remote_exception(sys.exc_info())
        return answer, None

    def listen(self, target: oslo_messaging.Target) -> None:
        adapter = rpc.TRANSPORT._driver.listen(target, 1, None)
        listener = adapter._poll_style_listener
        self._listeners.append(listener)
        arguments = (self._link, target.topic, listener)
        threading.Thread(target=self._forward, args=arguments, daemon=True).start()

    def _forward(self, link: wire.Link, topic: str, listener: Any) -> None:
        while True:
            for message in listener.poll():
                if listener._stopped.is_set() or link.has_ended():
                    message.requeue()
                else:
                    threading.Thread(
                        target=self._deliver, args=(link, topic, message), daemon=True
                    ).start()
            if listener._stopped.is_set() or link.has_ended():
                return

    def _deliver(self, link: wire.Link, topic: str, message: Any) -> None:
        ctxt = {key: value for key, value in message.ctxt.items() if key not in _UNCARRIED}
        delivery = [time.monotonic(), message.message.get("method"), None]
        self._deliveries.append(delivery)
        try:
            answer, failure = link.ask("deliver", topic, ctxt, message.message)
        except wire.Gone:
            return
        delivery[-1] = time.monotonic()
        if failure is None:
            message.reply(answer)
        else:
            exmods = rpc.get_allowed_exmods()
            error = common.deserialize_remote_exception(failure, exmods)
            message.reply(failure=(type(error), error, None))


class _Incoming(base.RpcIncomingMessage):  # type: ignore[misc]
    def __init__(self, ctxt: Any, message: Any) -> None:
        super().__init__(ctxt, message)
        self.answers: queue.Queue[_Reply] = queue.Queue()

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        text = common.serialize_remote_exception(failure) if failure else None
        self.answers.put((reply, text))

    def requeue(self) -> None:
        """Nova's services never do."""

    def heartbeat(self) -> None:
        """Who waits here waits for any time."""


class _Listener(base.PollStyleListener):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.messages: queue.Queue[_Incoming] = queue.Queue()

    @base.batch_poll_helper  # type: ignore[untyped-decorator]
    def poll(self, timeout: float | None = None) -> _Incoming | None:
        try:
            return self.messages.get(timeout=timeout or 1)
        except queue.Empty:
            return None


class Driver(base.BaseDriver):  # type: ignore[misc]
    """In the compute service's process: oslo.messaging's side of its link."""

    def __init__(self, conf: Any) -> None:
        super().__init__(conf, None, allowed_remote_exmods=rpc.get_allowed_exmods())
        self._listeners: dict[str, _Listener] = {}
        self.link: wire.Link

    def deliver(self, topic: str, ctxt: Any, message: Any) -> _Reply:
        """Called over the link."""
        incoming = _Incoming(ctxt, message)
        self._listeners[topic].messages.put(incoming)
        return incoming.answers.get()

    def send(
        self,
        target: oslo_messaging.Target,
        ctxt: Any,
        message: Any,
        wait_for_reply: bool | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        arguments = (target, ctxt, message, bool(wait_for_reply), timeout)
        answer, failure = self.link.ask("send", *arguments)
        if failure is not None:
            raise common.deserialize_remote_exception(failure, self._allowed_remote_exmods)
        return answer

    def listen(self, target: oslo_messaging.Target, batch_size: Any, batch_timeout: Any) -> Any:
        listener = self._listeners[target.topic] = _Listener()
        self.link.ask("listen", target)
        return base.PollStyleListenerAdapter(listener, batch_size, batch_timeout)

    def send_notification(self, *args: Any, **kwargs: Any) -> None:
        """Nobody listens."""

    def listen_for_notifications(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def cleanup(self) -> None:
        """It ends with its process."""
