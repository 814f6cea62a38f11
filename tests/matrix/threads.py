# SPDX-License-Identifier: Apache-2.0
"""Whose thread it is: each compute service has its own host in its configuration.

In one process all services have one configuration, so ``CONF.host`` is answered by thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import fixtures
import futurist
from nova.compute import manager
from oslo_messaging.rpc import dispatcher

from nova_gpu.conf import CONF

_own = threading.local()


def host() -> str | None:
    """Return the compute host for which this thread works, ``None`` for another service."""
    name: str | None = getattr(_own, "host", None)
    return name


class HostByThread(fixtures.Fixture):
    """Threads that a compute service's messages begin, and those that these begin, are its own.

    ``answer``: takes a message of *host* with what would answer it; to be replaced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answer: Callable[[str | None, Callable[[], Any], Any], Any] = _answer

    def _setUp(self) -> None:
        kind = type(CONF)
        self.addCleanup(setattr, CONF, "__class__", kind)
        CONF.__class__ = type(
            kind.__name__,
            (kind,),
            {"host": property(lambda conf: host() or kind.__getattr__(conf, "host"))},
        )
        self._dispatch, self._submit = dispatcher.RPCDispatcher.dispatch, _submit
        for owner, name, substitute in (
            (dispatcher.RPCDispatcher, "dispatch", self._dispatched),
            (futurist.ThreadPoolExecutor, "submit", _submitted),
        ):
            self.useFixture(fixtures.MockPatchObject(owner, name, _method(substitute)))

    def _dispatched(self, this: Any, incoming: Any) -> Any:
        # From 34 on Nova wraps them, to know what goes on.
        endpoints = [getattr(endpoint, "_endpoint", endpoint) for endpoint in this.endpoints]
        owners = [
            endpoint for endpoint in endpoints if isinstance(endpoint, manager.ComputeManager)
        ]
        own = owners[0].host if owners else None
        return self.answer(own, lambda: run(own, self._dispatch, this, incoming), incoming)


def run(own: str | None, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what *call* does, called in a thread of the host *own*."""
    before = host()
    _own.host = own
    try:
        return call(*args, **kwargs)
    finally:
        _own.host = before


_submit = futurist.ThreadPoolExecutor.submit


def _submitted(this: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
    own = host()
    return _submit(this, lambda: run(own, call, *args, **kwargs))


def _answer(own: str | None, answer: Callable[[], Any], incoming: Any) -> Any:
    return answer()


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)
