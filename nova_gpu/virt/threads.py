# SPDX-License-Identifier: Apache-2.0
"""Slow work in parallel: in native threads, or in green threads if the service runs on eventlet."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import futurist
import nova.privsep
from futurist import waiters
from nova import utils
from oslo_context import context as request_context

from nova_gpu.conf import CONF

Item = TypeVar("Item")


def for_each(function: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Call *function* with each item in parallel, and return when all calls have ended.

    If a call raises, the others continue, and the first error is raised at the end. Log messages
    carry the caller's request id.
    """
    pending = list(items)
    if len(pending) < 2:
        for future in pending:
            function(future)
        return
    call = _within_request(function)
    executor = _executor(len(pending))
    try:
        calls = [executor.submit(call, future) for future in pending]
        waiters.wait_for_all(calls)
    finally:
        # Do not wait for the threads: an idle one checks only once a second whether it must end.
        executor.shutdown(wait=False)
    for made in calls:
        made.result()


def begin(function: Callable[[Item], None], item: Item) -> futurist.Future[None]:
    """Call *function* with *item* in another thread, without waiting, and return the future.

    Log messages carry the caller's request id.
    """
    executor = _executor(1)
    begun = executor.submit(_within_request(function), item)
    # Only when the call has ended: an executor that is shut down drops calls that have not begun.
    if isinstance(executor, futurist.ThreadPoolExecutor):  # green threads leave nothing to end
        begun.add_done_callback(lambda _: executor.shutdown(wait=False))
    return begun


def _within_request(function: Callable[[Item], None]) -> Callable[[Item], None]:
    """Wrap *function* for another thread, so that its messages carry the caller's request id."""
    request, variables = request_context.get_current(), contextvars.copy_context()

    def call(item: Item) -> None:
        if request is not None:
            request.update_store()
        # Also :mod:`nova_gpu.virt.repeated_warnings`; two threads cannot enter one context.
        variables.copy().run(function, item)

    return call


def _executor(workers: int) -> futurist.ThreadPoolExecutor | futurist.GreenThreadPoolExecutor:
    """Return an executor with native threads, or with green ones if Nova runs on eventlet.

    Nova chooses the same way, in ``nova.utils``, from 34 on in ``nova.thread_pool_factory``.
    """
    # Nova up to 31 has only green threads, and no such function.
    is_threading = getattr(utils, "concurrency_mode_threading", lambda: False)
    if is_threading():
        return futurist.ThreadPoolExecutor(workers)
    return futurist.GreenThreadPoolExecutor(workers)


class DaemonShare:
    """The half of the privsep daemon's threads that slow calls may occupy.

    The daemon has one thread for each CPU by default. A call that may take minutes, such as the
    reset of a card, first enters :meth:`one`, so that the other half stays free for quick calls.
    """

    def __init__(self) -> None:
        options = CONF[nova.privsep.sys_admin_pctxt.cfg_section]
        self._left = threading.BoundedSemaphore(max(1, options.thread_pool_size // 2))
        self._own = threading.local()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Wait until slow calls have fewer than half the daemon's threads, then count as one.

        It counts during the block. A nested block in the same thread counts only once.
        """
        if getattr(self._own, "has_one", False):
            yield
            return
        with self._left:
            self._own.has_one = True
            try:
                yield
            finally:
                self._own.has_one = False
