# SPDX-License-Identifier: Apache-2.0
"""Calls with a deadline, and messages at a terminal about what the command waits for."""

from __future__ import annotations

import contextlib
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

from nova_gpu.core import boundary

_AFTER_S = 2.0


class Late(Exception):
    """A call that did not end in time; no OSError, after which kombu would try again."""


@contextlib.contextmanager
def limited(deadline_s: int) -> Iterator[None]:
    """Wrap a call of the main thread that must not go on after the deadline.

    :raises Late: in the call, after *deadline_s*, and again after the same time, because a logging
        handler that it meets goes on after any exception
    """

    def end(*_: Any) -> None:
        raise Late(f"no answer within {deadline_s} s")

    handler = signal.signal(signal.SIGALRM, end)
    former = signal.setitimer(signal.ITIMER_REAL, deadline_s, deadline_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *former)


def within(deadline_s: float) -> Callable[[Callable[[], Any]], Any]:
    """Return a function that returns the result of its argument, called with a deadline.

    After *deadline_s* the function raises TimeoutError, and the call goes on in a daemon thread.
    All calls use one thread because eventlet, if Nova uses it, answers only the thread that called
    first.
    """
    worker = Worker()

    def ask(read: Callable[[], Any]) -> Any:
        nonlocal worker
        answer: futures.Future[Any] = futures.Future()
        worker.calls.put((read, answer))
        if not futures.wait([answer], deadline_s).done:
            worker = Worker()
            raise TimeoutError(f"no answer within {deadline_s:g} s")
        return answer.result()

    return ask


class Worker:
    """A thread, and the queue of its calls, each with the future of its answer."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[Callable[[], Any], futures.Future[Any]]]
        self.calls = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            read, answer = self.calls.get()
            try:
                with boundary.crossed():
                    answer.set_result(read())
            except boundary.Failure as failure:
                answer.set_exception(failure.error)


@contextlib.contextmanager
def shown(what: str, after_s: float = _AFTER_S) -> Iterator[None]:
    """Wrap a wait; name it on standard error if it takes longer than *after_s*.

    Print nothing unless standard error is a terminal.

    :param what: the text that names it, such as ``asking libvirt``
    """
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(after_s, lambda: print(f"nova-gpu: {what} ...", file=sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
