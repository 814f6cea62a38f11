# SPDX-License-Identifier: Apache-2.0
"""Warnings of what lasts: logged in the period in which they begin, and when their text changes.

A condition that lasts is found again in every period, mostly once a minute. A log that repeats it
hides what is new.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging as python_logging
from collections.abc import Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

_PACKAGE = __name__.partition(".")[0]
# The logger, the text, whose it is and the error
_Key = tuple[str, str, str, str]


class Repeats:
    """The warnings and errors of one host's last two periods.

    One that is logged in this period, or was in the one before, is not logged again. One that was
    over for a period is.
    """

    def __init__(self) -> None:
        self._before: frozenset[_Key] = frozenset()
        self._now: set[_Key] = set()

    @contextlib.contextmanager
    def left_out(self, *, begins: bool = False) -> Iterator[None]:
        """Leave repeats out of what the block logs, here and in the threads that it waits for.

        :param begins: a new period begins with it
        """
        if begins:
            self._before, self._now = frozenset(self._now), set()
        _filter_all()
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def is_new(self, key: _Key) -> bool:
        known = key in self._now or key in self._before
        self._now.add(key)
        return not known


_current: contextvars.ContextVar[Repeats | None] = contextvars.ContextVar("repeats", default=None)


def carried(function: Callable[[Item], None]) -> Callable[[Item], None]:
    """Return *function* for another thread, with repeats left out there as they are here."""
    repeats = _current.get()

    def call(item: Item) -> None:
        token = _current.set(repeats)
        try:
            function(item)
        finally:
            _current.reset(token)

    return call


class _Filter(python_logging.Filter):
    def filter(self, record: python_logging.LogRecord) -> bool:
        repeats = _current.get()
        if repeats is None or record.levelno < python_logging.WARNING:
            return True
        error = record.exc_info[1] if record.exc_info else None
        whose = str(getattr(record, "instance", ""))
        return repeats.is_new((record.name, record.getMessage(), whose, repr(error)))


_FILTER = _Filter()


def _filter_all() -> None:
    """Let the loggers of this package filter: handlers may be any, and others' as well."""
    for name in list(python_logging.root.manager.loggerDict):
        if name.partition(".")[0] == _PACKAGE:
            python_logging.getLogger(name).addFilter(_FILTER)
