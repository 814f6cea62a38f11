# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu flavor check``: what flavors ask for, and their mistakes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_gpu.core import exception
from nova_gpu.core.flavor import validation
from nova_gpu.core.flavor.request import FlavorRequest
from osc_gpu import asking, flavors
from osc_gpu.asking import Lines

_COLUMNS = ("Flavor", "Asks For", "Quota Counts", "Mistakes")
_UNREADABLE = "unreadable"


class CheckFlavor(asking.Lister):
    """Say what flavors ask for, and all that is wrong with them; exits 1 where something is.

    The API refuses a wrong property only from microversion 2.86 on, and never looks at flavors that
    exist: an instance of one with mistakes fails.
    """

    _found_mistakes = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "flavors",
            metavar="<flavor>",
            nargs="*",
            help="Flavor (name or ID); without any, all that say something of GPUs",
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
        rows = []
        connection = self.connection(parsed_args)
        for flavor in flavors.read(connection, parsed_args.flavors):
            asked = flavors.request_of(flavor)
            found = [*validation.mistakes(asked), *_novas(asked.extra_specs)]
            asks_for, counted = _described(asked)
            if parsed_args.flavors or found or asks_for:
                rows.append((flavor.name, asks_for or flavors.NOTHING, counted, Lines(found)))
            self._found_mistakes |= bool(found)
        # Nova lists flavors by their ids, which are drawn by lot.
        return _COLUMNS, rows if parsed_args.flavors else sorted(rows, key=lambda row: row[0])

    def run(self, parsed_args: argparse.Namespace) -> int:
        return super().run(parsed_args) or int(self._found_mistakes)


def _described(asked: FlavorRequest) -> tuple[str, str]:
    """What the flavor asks for, and whether quota counts it"""
    try:
        if not asked.requests:
            return "", ""
    except exception.InvalidExtraSpec:
        return _UNREADABLE, ""
    counted = all(each.counted for each in asked.requests)
    return flavors.in_words(asked), "yes" if counted else "no"


def _novas(specs: Mapping[str, str]) -> Iterator[str]:
    """What the API would refuse of the properties that are not nova-gpu's"""
    # Only now: it takes a second, and other commands of the client have no use for it.
    from nova import exception as nova_exception
    from nova.api.validation.extra_specs import validators

    for key, value in specs.items():
        if validation.is_own(key):
            continue
        try:
            validators.validate(key, value)
        except nova_exception.ValidationError as error:
            yield f"{key}={value!r}: {str(error).removeprefix('Validation failed; ')}"
