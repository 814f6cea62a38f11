# SPDX-License-Identifier: Apache-2.0
"""A fork of this process."""

from __future__ import annotations

import ctypes
import os
import signal
import traceback
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def fork(run: Callable[[], object]) -> int:
    """*run* in a process of its own, that ends with this one; its pid."""
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
