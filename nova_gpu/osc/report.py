# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu report --html FILE``"""

from __future__ import annotations

import argparse
import pathlib

from osc_lib import exceptions
from oslo_utils import timeutils

from nova_gpu.osc import asking, fleet, page


class WriteReport(asking.Command):
    """Write a page that shows the GPUs: by group, who has them, and what could boot now.

    It is one file that loads nothing from elsewhere. It names the instances of all projects. For
    administrators.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--html", metavar="<file>", required=True, type=pathlib.Path, help="File to write"
        )
        parser.add_argument("--title", metavar="<text>", default="GPUs", help="(default: GPUs)")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        begun = timeutils.utcnow()
        found = fleet.read(self.connection(parsed_args))
        text = page.render(found, parsed_args.title, begun)
        try:
            parsed_args.html.write_text(text, encoding="utf-8")
        except OSError as e:
            raise exceptions.CommandError(
                f"{parsed_args.html} cannot be written: {e.strerror}"
            ) from e
        print(
            f"{parsed_args.html}: groups of GPUs: {len(found.groups)}; flavors: "
            f"{len(found.capacities)}; instances: {len({each.server for each in found.held})}.",
            file=self.app.stderr,
        )
