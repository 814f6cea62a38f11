# SPDX-License-Identifier: Apache-2.0
"""The commands ``nova-gpu test`` and ``nova-gpu passport``, with their arguments."""

from __future__ import annotations

from typing import Any

from nova_gpu.cmd.arguments import add_address, add_command


def add_commands(subparsers: Any) -> None:
    """Add the parsers of ``test`` and ``passport`` to *subparsers*."""
    text = (
        "have nova-compute test a GPU again when no instance has it, for example after a repair; "
        "until it passes, new instances do not get it"
    )
    module = f"{__name__.rpartition('.')[0]}.retest"
    add_address(add_command(subparsers, "test", module, text, formats=False))
    text = "show what is known of a GPU by its serial number, from this host and the shared folder"
    module = f"{__name__.rpartition('.')[0]}.passport"
    parser = add_command(subparsers, "passport", module, text)
    add_address(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--note", metavar="TEXT", help="add a note, such as a repair or the number of an RMA"
    )
    what.add_argument(
        "--accept",
        metavar="REASON",
        help="add a note, and no longer count the card's returns before it",
    )
