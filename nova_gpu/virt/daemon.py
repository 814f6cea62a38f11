# SPDX-License-Identifier: Apache-2.0
"""The threads of privsep's daemon, which Nova needs for the network and disks of all instances."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import nova.privsep

from nova_gpu.conf import CONF


class Share:
    """Half of them, by default one for each CPU: what may take minutes, as a reset or a driver that
    hangs, leaves the other half."""

    def __init__(self) -> None:
        options = CONF[nova.privsep.sys_admin_pctxt.cfg_section]
        self._left = threading.BoundedSemaphore(max(1, options.thread_pool_size // 2))
        self._own = threading.local()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Waits for one of them; who has one already goes on with that."""
        if getattr(self._own, "has_one", False):
            yield
            return
        with self._left:
            self._own.has_one = True
            try:
                yield
            finally:
                self._own.has_one = False
