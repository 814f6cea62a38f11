# SPDX-License-Identifier: Apache-2.0
"""A log filter that drops warnings which only repeat those of the last period.

Every period, mostly once a minute, detects a lasting condition again. A log that repeats it hides
new messages. So a warning is logged when its condition begins, and when its text changes.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging as python_logging
from collections.abc import Iterator

_PACKAGE = __name__.partition(".")[0]
# The logger, the text, the instance and the error of a log record
_Key = tuple[str, str, str, str]


class Repeats:
    """The warnings and errors of the last two periods, of which repeats are not logged.

    A message that occurred in this period or in the one before is a repeat. If it did not occur for
    a whole period, it is logged again.
    """

    def __init__(self) -> None:
        self._before: frozenset[_Key] = frozenset()
        self._now: set[_Key] = set()

    @contextlib.contextmanager
    def left_out(self, *, begins: bool = False) -> Iterator[None]:
        """Drop repeated warnings and errors that the block logs.

        That holds in this thread, and in those that :mod:`nova_gpu.virt.threads` begins for it.
        """
        if begins:
            self._before, self._now = frozenset(self._now), set()
        _filter_all(len(python_logging.root.manager.loggerDict))
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


class _Filter(python_logging.Filter):
    def filter(self, record: python_logging.LogRecord) -> bool:
        repeats = _current.get()
        if repeats is None or record.levelno < python_logging.WARNING:
            return True
        error = record.exc_info[1] if record.exc_info else None
        whose = str(getattr(record, "instance", ""))
        return repeats.is_new((record.name, record.getMessage(), whose, repr(error)))


_FILTER = _Filter()


@functools.lru_cache(maxsize=1)
def _filter_all(count: int) -> None:
    """Add the filter to each logger of nova_gpu, of *count* loggers in all.

    The handlers are not suitable, because other packages log through them, too.
    """
    for name in list(python_logging.root.manager.loggerDict):
        if name.partition(".")[0] == _PACKAGE:
            python_logging.getLogger(name).addFilter(_FILTER)
