# SPDX-License-Identifier: Apache-2.0
"""What a command waits for, said to who waits at a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

_AFTER_S = 2.0


@contextlib.contextmanager
def shown(what: str, after_s: float = _AFTER_S) -> Iterator[None]:
    """Says on standard error that it is *what* takes so long; in a pipe and a log it says nothing.

    :param what: such as ``asking libvirt``
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
