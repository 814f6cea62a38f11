# SPDX-License-Identifier: Apache-2.0
"""Calls with a deadline, and messages at a terminal about what the command waits for."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from nova_gpu.core import boundary

_AFTER_S = 2.0


def within(deadline_s: float) -> Callable[[Callable[[], Any]], Any]:
    """Return a function that returns the result of its argument, called with a deadline.

    After *deadline_s* the function raises TimeoutError, and the call goes on in a daemon thread.
    All calls use one thread because eventlet, if Nova uses it, answers only the thread that called
    first.
    """
    worker = _Worker()

    def ask(read: Callable[[], Any]) -> Any:
        nonlocal worker
        try:
            answer, error = worker.answer(read, deadline_s)
        except queue.Empty:
            worker = _Worker()
            raise TimeoutError(f"no answer within {deadline_s:g} s") from None
        if error is not None:
            raise error
        return answer

    return ask


class _Worker:
    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Callable[[], Any], Any]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def answer(self, read: Callable[[], Any], timeout_s: float) -> tuple[Any, Exception | None]:
        """Call *read* in the thread; return its result and ``None``, or ``None`` and its error.

        :raises queue.Empty: if the call takes longer than *timeout_s*
        """
        answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        self._waiting.put((read, answers))
        return answers.get(timeout=timeout_s)

    def _work(self) -> None:
        while True:
            read, answers = self._waiting.get()
            try:
                with boundary.crossed():
                    answers.put((read(), None))
            except boundary.Failure as failure:
                answers.put((None, failure.error))


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
