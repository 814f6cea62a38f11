# SPDX-License-Identifier: Apache-2.0
"""Base classes of commands that query services, and give up if a service does not answer."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import requests
from cliff import columns
from osc_lib import exceptions
from osc_lib.command import command
from requests import adapters

from nova_gpu.core import printable

TIMEOUT_S = 60
# After so long a terminal sees that the command works.
_SILENT_S = 5.0
# A thousand years in seconds are no deadline, and select(2) refuses them.
_MOST_S = 24 * 3600


class Command(command.Command):
    """A command whose requests have a deadline and whose output is safe to print.

    Users write names, metadata and faults; :func:`printable.lines` sanitises them in each output
    format.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_timeout(parser)
        return parser

    @property
    def required_scope(self) -> bool:
        """``False``: the services check a token's scope, not the client.

        Reading this property also sets the deadline of the client's request for a token. osc-lib
        reads it between creating the session and that request; the command's --timeout is parsed
        only afterwards (doc/source/contributor/upstream.rst).
        """
        _set_deadline(self.app.client_manager.session, TIMEOUT_S)
        return False

    def connection(self, parsed_args: argparse.Namespace) -> Any:
        """Return the user's openstacksdk connection, whose requests have the deadline --timeout."""
        connection = self.app.client_manager.sdk_connection
        _set_deadline(connection.session, parsed_args.timeout)
        return connection

    def say(self, text: str) -> None:
        """Print a line to stderr, because machine-readable output on stdout has no place for it."""
        print(printable.lines(text), file=self.app.stderr, flush=True)

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command, and return its exit status.

        :raises CommandError: what :meth:`take_action` raises, with a text that is safe to print
        """
        timer = threading.Timer(_SILENT_S, self.say, ["asking Nova and Placement ..."])
        timer.daemon = True
        if self.app.stderr.isatty():
            timer.start()
        try:
            status: int = super().run(parsed_args)
        except exceptions.CommandError as e:
            e.args = tuple(printable.within(list(e.args)))
            raise
        finally:
            timer.cancel()
        return status


class Lister(Command, command.Lister):
    def produce_output(
        self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Any]
    ) -> int:
        rows = (tuple(map(_cell, row)) for row in data)
        status: int = super().produce_output(parsed_args, column_names, rows)
        return status


class ShowOne(Command, command.ShowOne):
    def produce_output(
        self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Any]
    ) -> int:
        status: int = super().produce_output(parsed_args, column_names, tuple(map(_cell, data)))
        return status


def _cell(value: Any) -> Any:
    return value if isinstance(value, columns.FormattableColumn) else printable.within(value)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add ``--timeout`` to *parser*; :meth:`Command.connection` uses its value."""
    parser.add_argument(
        "--timeout",
        metavar="<seconds>",
        type=seconds,
        default=TIMEOUT_S,
        help=f"Seconds to wait for each answer of Nova or Placement (default: {TIMEOUT_S})",
    )


def _set_deadline(session: Any, timeout_s: float) -> None:
    """Set the deadline, in seconds, of each later request of a keystoneauth *session*."""
    sending = session.session
    for prefix, adapter in list(sending.adapters.items()):
        # There is one already if a token was requested, or an earlier command ran in the same
        # shell.
        inner = adapter.inner if isinstance(adapter, _DeadlineAdapter) else adapter
        sending.mount(prefix, _DeadlineAdapter(inner, timeout_s))


class _DeadlineAdapter(adapters.BaseAdapter):
    """A transport adapter of the requests library that limits the time of each HTTP request.

    A keystoneauth session's own timeout is no alternative: its discovery reports a service that
    does not answer as one without a suitable version.
    """

    def __init__(self, inner: adapters.BaseAdapter, timeout_s: float) -> None:
        super().__init__()
        self.inner = inner
        self._timeout_s = timeout_s

    def send(
        self, request: requests.PreparedRequest, *args: Any, **kwargs: Any
    ) -> requests.Response:
        """Send the request, and give up after the timeout.

        :raises CommandError: after the timeout; keystoneauth and openstacksdk pass it on unchanged
        """
        kwargs["timeout"] = self._timeout_s
        try:
            response = self.inner.send(request, *args, **kwargs)
            if not kwargs.get("stream"):
                response.content  # noqa: B018  it is read here, so that its silence is seen, too
            return response
        except (requests.Timeout, requests.ConnectionError) as e:
            # A timeout while reading an answer's body is not a requests.Timeout.
            if not isinstance(e, requests.Timeout) and "timed out" not in str(e):
                raise
            url = (request.url or "").partition("?")[0]
            raise exceptions.CommandError(
                f"{url} did not answer {request.method} within {self._timeout_s:g} s; see whether "
                "that service and its database work, or wait longer with --timeout"
            ) from e

    def close(self) -> None:
        self.inner.close()


def seconds(text: str) -> float:
    """Parse an option's number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number <= _MOST_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds above 0 and up to {_MOST_S}"
        )
    return number


class Lines(columns.FormattableColumn[list[Any]]):
    """A column with a list, which a table shows as one item per line."""

    def __init__(self, things: Iterable[Any], line: Callable[[Any], str] = str) -> None:
        super().__init__(printable.within(list(things)))
        self._line = line

    def human_readable(self) -> str:
        return "\n".join(map(self._line, self._value))

    def machine_readable(self) -> list[Any]:
        return self._value


class Short(columns.FormattableColumn[str]):
    """A column with a long text, for which a table shows a short one."""

    def __init__(self, text: str, short: str) -> None:
        super().__init__(printable.lines(text))
        self._short = printable.lines(short)

    def human_readable(self) -> str:
        return self._short
