# SPDX-License-Identifier: Apache-2.0
"""The options of commands that wait for free GPUs, and the polls of commands that wait."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from osc_gpu.base_command import seconds

# The seconds between two polls of a service
POLL_S = 2.0
_EVERY_S = 30

_Answer = TypeVar("_Answer")


def add_options(parser: argparse.ArgumentParser, for_s: float = 0) -> None:
    """Add to *parser* how long and how often a command without free GPUs retries.

    The options ``--for`` and ``--every`` set the attributes ``for_s`` and ``every_s``.

    :param for_s: the default of ``--for``, in seconds; 0 means one try
    """
    parser.add_argument(
        "--for",
        metavar="<seconds>",
        dest="for_s",
        type=seconds,
        default=for_s,
        help=f"Seconds to go on retrying while no GPUs are free (default: {for_s or 'try once'})",
    )
    parser.add_argument(
        "--every",
        metavar="<seconds>",
        dest="every_s",
        type=seconds,
        default=_EVERY_S,
        help=f"With --for: seconds between two tries (default: {_EVERY_S})",
    )


def polled(ask: Callable[[], _Answer], patience_s: float) -> Iterator[_Answer]:
    """Call *ask* every two seconds and yield its answers, the last after *patience_s* seconds."""
    until = time.monotonic() + patience_s
    while True:
        yield ask()
        if time.monotonic() > until:
            return
        time.sleep(POLL_S)
