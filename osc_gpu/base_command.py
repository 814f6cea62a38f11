# SPDX-License-Identifier: Apache-2.0
"""Base classes of commands that query services, and give up if a service does not answer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import requests
from cliff import columns
from osc_lib import exceptions
from osc_lib.command import command
from requests import adapters

from nova_gpu.core import printable

TIMEOUT_S = 60
# A thousand years in seconds are no deadline, and select(2) refuses them.
_MOST_S = 24 * 3600
_EVERY_S = 30


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
        """``False``: the client does not check a token's scope, because the services do.

        osc-lib reads this attribute after it has created the session and before it requests a token
        from Keystone, which happens before the command line's own --timeout is parsed. This is the
        only point at which a deadline for that request can be set
        (doc/source/contributor/upstream.rst).
        """
        _hurry(self.app.client_manager.session, TIMEOUT_S)
        return False

    def connection(self, parsed_args: argparse.Namespace) -> Any:
        """Return openstacksdk's connection, with the rights of the user who runs the command.

        Its requests raise CommandError if a service does not answer in time.
        """
        connection = self.app.client_manager.sdk_connection
        _hurry(connection.session, parsed_args.timeout)
        return connection

    def say(self, text: str) -> None:
        """Print a line to stderr, because machine-readable output on stdout has no place for it."""
        print(printable.lines(text), file=self.app.stderr, flush=True)

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command, and return its exit status.

        :raises CommandError: as :meth:`take_action`
        """
        try:
            status: int = super().run(parsed_args)
        except exceptions.CommandError as e:
            e.args = tuple(printable.within(list(e.args)))
            raise
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
        help=f"How long to wait for an answer of Nova or Placement (default: {TIMEOUT_S})",
    )


def add_retries(parser: argparse.ArgumentParser, for_s: float = 0) -> None:
    """Add ``--for`` and ``--every`` to *parser*, with the attributes ``for_s`` and ``every_s``.

    :param for_s: the default of ``--for``; with 0 the command tries once
    """
    parser.add_argument(
        "--for",
        metavar="<seconds>",
        dest="for_s",
        type=seconds,
        default=for_s,
        help=f"How long to retry while no GPUs are free (default: {for_s or 'try once'})",
    )
    parser.add_argument(
        "--every",
        metavar="<seconds>",
        dest="every_s",
        type=seconds,
        default=_EVERY_S,
        help=f"With --for: the time between two tries (default: {_EVERY_S})",
    )


def _hurry(session: Any, timeout_s: float) -> None:
    """Give all later requests of a keystoneauth *session* this deadline."""
    sending = session.session
    for prefix, adapter in list(sending.adapters.items()):
        # There is one already if a token was requested, or an earlier command ran in the same
        # shell.
        patient = adapter.patient if isinstance(adapter, _Impatient) else adapter
        sending.mount(prefix, _Impatient(patient, timeout_s))


class _Impatient(adapters.BaseAdapter):
    """An adapter of requests that gives each request a deadline.

    The timeout of a keystoneauth session is no alternative: its discovery reports a service that
    does not answer as one without a version, which is misleading.
    """

    def __init__(self, patient: adapters.BaseAdapter, timeout_s: float) -> None:
        super().__init__()
        self.patient = patient
        self._timeout_s = timeout_s

    def send(
        self, request: requests.PreparedRequest, *args: Any, **kwargs: Any
    ) -> requests.Response:
        """Send the request, and give up after the timeout.

        :raises CommandError: which no caller turns into another error
        """
        kwargs["timeout"] = self._timeout_s
        try:
            response = self.patient.send(request, *args, **kwargs)
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
        self.patient.close()


def seconds(text: str) -> float:
    """Parse the number of seconds in an option.

    :raises argparse.ArgumentTypeError: if *text* is not a number in the permitted range
    """
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number <= _MOST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to {_MOST_S}")
    return number


class Lines(columns.FormattableColumn[list[Any]]):
    """A column with a list: programs get the list, people one item per line."""

    def __init__(self, things: Iterable[Any], line: Callable[[Any], str] = str) -> None:
        super().__init__(printable.within(list(things)))
        self._line = line

    def human_readable(self) -> str:
        return "\n".join(map(self._line, self._value))

    def machine_readable(self) -> list[Any]:
        return self._value


class Short(columns.FormattableColumn[str]):
    """A column with a long text: programs get the whole text, people a short one."""

    def __init__(self, text: str, short: str) -> None:
        super().__init__(printable.lines(text))
        self._short = printable.lines(short)

    def human_readable(self) -> str:
        return self._short
