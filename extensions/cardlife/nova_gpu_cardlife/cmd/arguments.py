# SPDX-License-Identifier: Apache-2.0
"""The command ``nova-gpu test``, with its argument."""

from __future__ import annotations

from typing import Any

from nova_gpu.cmd.arguments import add_address, add_command


def add_commands(subparsers: Any) -> None:
    """Add the parser of ``test`` to *subparsers*."""
    text = (
        "have nova-compute test a GPU again when no instance has it, for example after a repair; "
        "until it passes, new instances do not get it"
    )
    module = f"{__name__.rpartition('.')[0]}.retest"
    add_address(add_command(subparsers, "test", module, text, formats=False))
