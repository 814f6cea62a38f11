# SPDX-License-Identifier: Apache-2.0
"""Slow things side by side: native threads, or green ones where the service runs on eventlet."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import futurist
import nova.privsep
from futurist import waiters
from nova import utils
from oslo_context import context as request_context

from nova_gpu.conf import CONF
from nova_gpu.virt import repeated_warnings

Item = TypeVar("Item")


def for_each(function: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Call *function* with each of *items*, all at once, and returns when all have ended.

    Where it raises for one the others go on, and the first error is raised at the end. What is
    logged carries the request of the caller.
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
        # Not for the threads themselves: an idle one looks once a second whether it is to end.
        executor.shutdown(wait=False)
    for made in calls:
        made.result()


def begin(function: Callable[[Item], None], item: Item) -> futurist.Future[None]:
    """Call *function* with *item* in a thread of its own."""
    executor = _executor(1)
    begun = executor.submit(_within_request(function), item)
    # Not before: one that is shut down drops what none of its threads has taken yet.
    if isinstance(executor, futurist.ThreadPoolExecutor):  # green threads leave nothing to end
        begun.add_done_callback(lambda _: executor.shutdown(wait=False))
    return begun


def _within_request(function: Callable[[Item], None]) -> Callable[[Item], None]:
    """Let what *function* logs carry the request of the caller."""
    context, carried = request_context.get_current(), repeated_warnings.carried(function)

    def call(item: Item) -> None:
        if context is not None:
            context.update_store()
        carried(item)

    return call


def _executor(workers: int) -> futurist.ThreadPoolExecutor | futurist.GreenThreadPoolExecutor:
    """Return an executor like Nova's (``nova.utils``, from 34 ``nova.thread_pool_factory``)."""
    # Nova 31 and those before it have green threads alone, and no such function.
    is_threading = getattr(utils, "concurrency_mode_threading", lambda: False)
    if is_threading():
        return futurist.ThreadPoolExecutor(workers)
    return futurist.GreenThreadPoolExecutor(workers)


class DaemonShare:
    """Half of them, by default one for each CPU.

    What may take minutes, as a reset or a driver that hangs, leaves the other half.
    """

    def __init__(self) -> None:
        options = CONF[nova.privsep.sys_admin_pctxt.cfg_section]
        self._left = threading.BoundedSemaphore(max(1, options.thread_pool_size // 2))
        self._own = threading.local()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Wait for a free place; a thread that has one goes on."""
        if getattr(self._own, "has_one", False):
            yield
            return
        with self._left:
            self._own.has_one = True
            try:
                yield
            finally:
                self._own.has_one = False
