# SPDX-License-Identifier: Apache-2.0
"""A command's output: its formats, and the case that its reader closes the pipe."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from typing import Any, TextIO

# The status that a shell reports for a program that the signal ended, as most do in a pipe.
_CLOSED = 128 + signal.SIGPIPE


@contextlib.contextmanager
def while_read() -> Iterator[None]:
    """Wrap a program; end it silently if the reader of its output ends, as ``| head -1`` does.

    SIGPIPE does not end it, because Python ignores that signal: the exporter must survive the end
    of a client.

    :raises SystemExit: if the reader has ended, with the status that a shell reports for programs
        that end by SIGPIPE
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        closed = [stream for stream in (sys.stdout, sys.stderr) if _has_no_reader(stream)]
        if not closed:
            raise  # another pipe's
        # Otherwise Python reports at its end that it could not write the rest.
        for stream in closed:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise SystemExit(_CLOSED) from None


def _has_no_reader(stream: TextIO) -> bool:
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return False  # within a test, or closed
    poll = select.poll()
    poll.register(number, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


# Printed in place of a list of cards
NO_CARDS = "No GPU was found on this host, or [gpu] options leave all of them out."


class Format(enum.StrEnum):
    TABLE = "table"
    JSON = "json"


def add_format(parser: Any) -> None:
    """Add the options ``--format``, as ``openstack`` has it, and ``--json`` to *parser*.

    The parsed result has the attribute ``format``, one of :class:`Format`.
    """
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "-f",
        "--format",
        choices=[str(form) for form in Format],
        default=Format.TABLE,
        help="print a table or text for people (the default), or JSON for programs",
    )
    how.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const=Format.JSON,
        help="the same as --format json",
    )


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
