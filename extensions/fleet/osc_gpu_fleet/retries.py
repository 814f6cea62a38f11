# SPDX-License-Identifier: Apache-2.0
"""The options of commands that wait for free GPUs."""

from __future__ import annotations

import argparse

from osc_gpu.base_command import seconds

_EVERY_S = 30


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
