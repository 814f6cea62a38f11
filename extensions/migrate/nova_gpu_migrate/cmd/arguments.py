# SPDX-License-Identifier: Apache-2.0
"""The commands of ``nova-gpu`` for hosts of stock Nova, with their options."""

from __future__ import annotations

import argparse
import contextlib
import math
from typing import Any

from nova_gpu.cmd.arguments import add_command

_COMMANDS = __name__.rpartition(".")[0]


def _seconds(text: str) -> float:
    """Parse a time in seconds."""
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")


def add_commands(subparsers: Any) -> None:
    """Add the parsers of ``shadow``, ``adopt`` and ``leave`` to *subparsers*."""
    text = (
        "on a host of stock Nova, show what nova-gpu would do there, and which instances with "
        "GPUs it could take over; changes nothing; exits 1 if one cannot be taken over, 3 if a "
        "source does not answer"
    )
    add_command(subparsers, "shadow", f"{_COMMANDS}.shadow", text).add_argument(
        "--every",
        type=_seconds,
        metavar="SECONDS",
        help="show it again and again, with this time in between (default: once)",
    )
    text = (
        "take over the instances that have GPUs by stock Nova, as they run: cards and virtual "
        "functions by an alias, mediated devices; without --apply only show which, and why "
        "others stay; exits 1 if one stays, 3 if a source does not answer"
    )
    adopt = add_command(subparsers, "adopt", f"{_COMMANDS}.adopt", text, formats=False)
    adopt.add_argument(
        "instances", metavar="UUID", nargs="*", help="instance to take over (default: all)"
    )
    adopt.add_argument(
        "--shelved",
        action="store_true",
        help="also change the shelved instances that no host has and that ask as aliases of "
        "this host do",
    )
    adopt.add_argument(
        "--apply",
        action="store_true",
        help="do it; nova-compute must be stopped, and its options already be nova-gpu's",
    )
    adopt.add_argument(
        "--with-gpufilter",
        action="store_true",
        help="confirm that nova-api and nova-scheduler have nova-gpu, with GPUFilter enabled; "
        "needed where this host's options do not show it",
    )
    text = (
        "give all instances of this host that have GPUs back to stock Nova, as they run, by an "
        "alias or as its mediated devices; without --apply only show how, and what is in the "
        "way; exits 1 if one cannot be given back, 3 if a source does not answer"
    )
    leave = add_command(subparsers, "leave", f"{_COMMANDS}.leave", text, formats=False)
    leave.add_argument(
        "--alias",
        metavar="NAME",
        dest="aliases",
        action="append",
        default=[],
        help="alias to give functions by, if several give one; may be repeated",
    )
    leave.add_argument(
        "--shelved",
        action="store_true",
        help="also change the shelved instances that no host has and that ask as aliases of "
        "this host do",
    )
    leave.add_argument(
        "--apply",
        action="store_true",
        help="do it; nova-compute must be stopped, and its options already be stock Nova's",
    )
