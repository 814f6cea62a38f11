# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu capacity FLAVOR``: shows how many instances of a flavor could boot now."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from nova_gpu.core.scheduling import capacity
from osc_gpu import base_command, flavors, hosts
from osc_gpu.resource_request import Size

_COLUMNS = ("Host", "Instances", "GPUs Free", "GPUs In Service", "Why Not More")

_Table = tuple[Sequence[str], Iterable[tuple[Any, ...]]]


class ShowCapacity(base_command.Lister):
    """Show how many instances of a flavor could boot now, on which host, and why not more.

    The count is Placement's, on hosts whose compute service is up and enabled. Aggregates, images
    and other conditions of the scheduler can only lower it. For administrators.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("flavor", metavar="<flavor>", help="Flavor (name or ID)")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> _Table:
        connection = self.connection(parsed_args)
        (flavor,) = flavors.read(connection, [parsed_args.flavor])
        answers = hosts.answers(connection, Size.of(flavor), flavors.request_of(flavor))
        total, able = capacity.could_boot(answers)
        self.say(
            f"{flavor.name}: {total} could boot now, on {able} of {len(answers)} hosts with GPUs."
        )
        rows = [
            (answer.host, answer.instances, answer.free, answer.in_service, answer.reason)
            for answer in answers
        ]
        return _COLUMNS, rows
