# SPDX-License-Identifier: Apache-2.0
"""What nova-compute, a process of its own, and the rest of the cloud say to each other."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import connection
from typing import Any

# The host of a cloud that has one.
HOST = "compute"

Handlers = Mapping[str, Callable[..., Any]]

_POLL_S = 0.2


class Gone(Exception):
    """The process at the other end has died."""


class Failed(Exception):
    """The other end could not do what it was asked; the text is its own."""


class Acceptor:
    """Who connects to *listener*, as a wait that ends: its own never does."""

    def __init__(self, listener: connection.Listener) -> None:
        self._listener = listener
        self._connected: queue.Queue[connection.Connection[Any, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def accept(
        self, is_dead: Callable[[], bool], timeout_s: float
    ) -> connection.Connection[Any, Any]:
        """
        :param is_dead: whether the process that is waited for has died
        :raises Gone: where it has, or does not connect in time
        """
        deadline = time.monotonic() + timeout_s
        while True:
            is_last = is_dead() or time.monotonic() > deadline
            with contextlib.suppress(queue.Empty):
                return self._connected.get(timeout=_POLL_S)
            if is_last:
                raise Gone

    def _listen(self) -> None:
        """Until the listener is closed"""
        while True:
            try:
                self._connected.put(self._listener.accept())
            except (EOFError, ConnectionError, multiprocessing.AuthenticationError):
                continue  # of a process that died meanwhile
            except OSError:
                return


class Link:
    """Questions and their answers in both directions, many at a time."""

    def __init__(self, stream: connection.Connection, handlers: Handlers) -> None:
        self._stream = stream
        self._handlers = handlers
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, queue.Queue[Any]] = {}
        self._ended = threading.Event()

    def ask(self, verb: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """:raises Gone, Failed:
        :raises queue.Empty: without an answer in time
        """
        number = next(self._numbers)
        answers = self._waiting[number] = queue.Queue()
        try:
            self._send("ask", number, verb, arguments)
            if self._ended.is_set():
                raise Gone
            answer = answers.get(timeout=timeout_s)
        finally:
            del self._waiting[number]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def has_ended(self) -> bool:
        return self._ended.is_set()

    def serve(self) -> None:
        """Answers until the other end dies."""
        try:
            while True:
                kind, number, *rest = self._stream.recv()
                if kind == "ask":
                    threading.Thread(target=self._answer, args=(number, *rest), daemon=True).start()
                elif waiting := self._waiting.get(number):
                    waiting.put(*rest)
        except (EOFError, OSError):
            self._ended.set()
            for waiting in list(self._waiting.values()):
                waiting.put(Gone())

    def _answer(self, number: int, verb: str, arguments: tuple[Any, ...]) -> None:
        try:
            answer = self._handlers[verb](*arguments)
        except Exception as error:
            answer = Failed(f"{type(error).__name__}: {error}")
        with contextlib.suppress(Gone):
            self._send("answer", number, answer)

    def _send(self, *message: Any) -> None:
        if self._ended.is_set():
            raise Gone  # eventlet's os.write takes EPIPE for a full pipe, and tries again for ever
        try:
            with self._sending:
                self._stream.send(message)
        except OSError as error:
            raise Gone from error
