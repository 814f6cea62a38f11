# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu group list``: the groups of GPUs of all hosts."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from osc_lib import exceptions

from nova_gpu.osc import asking, providers

_COLUMNS = (
    *("Host", "Product", "Model", "Architecture", "Mode"),
    *("Total", "Used", "Reserved", "Free"),
)


class ListGroups(asking.Lister):
    """List the groups of GPUs: cards of one product in one mode on one host.

    Reserved cards are given to no new instance: they have failed, are in quarantine, or are used by
    guests that are not Nova's. On the host nova-gpu list says which, and why. For administrators.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--host", metavar="<host>", help="Show only the groups of this compute node"
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
        found = providers.read(self.connection(parsed_args))
        there = sorted({each.host for each in found})
        if parsed_args.host is not None and parsed_args.host not in there:
            raise exceptions.CommandError(
                f"Placement has no GPUs of a host {parsed_args.host}; "
                f"{_hint(parsed_args.host, there)}"
            )
        return _COLUMNS, (
            (
                *(each.host, each.product, each.model, each.architecture, each.mode),
                *(each.group.total, each.group.used, each.group.reserved, each.group.free),
            )
            for each in found
            if parsed_args.host in (None, each.host)
        )


def _hint(host: str, there: Sequence[str]) -> str:
    if alike := difflib.get_close_matches(host, there, n=1):
        return f"did you mean {alike[0]}?"
    if not there:
        return "nor of any other (openstack gpu host list)"
    return f"it has some of {len(there)} others, which openstack gpu host list names"
