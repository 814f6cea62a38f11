# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu help``: lists the commands, with their arguments and what they do."""

from __future__ import annotations

import argparse
import textwrap
from importlib import metadata

from osc_lib.command import command

_GROUP = "openstack.gpu.v1"
_WIDTH = 78
# The end of a description
_WHO = "For administrators"


class ListCommands(command.Command):
    """List the commands of openstack gpu with their arguments, and say what each does.

    The client's own openstack help gpu lists only their names.
    """

    auth_required = False

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        for point in sorted(metadata.entry_points(group=_GROUP), key=lambda point: point.name):
            made = point.load()(self.app, self.app_args)
            usage = argparse.HelpFormatter(point.name.replace("_", " "), width=_WIDTH)
            actions = made.get_parser("")._actions  # argparse has no other list of them
            required = [action for action in actions if action.required]
            optional = [
                action for action in actions if not (action.required or action.option_strings)
            ]
            usage.add_usage(None, [*required, *optional], [], prefix="")
            what, _, rest = " ".join(made.get_description().split()).rstrip(".").partition(". ")
            if rest.endswith(_WHO):
                what += f". {_WHO}"
            text = textwrap.fill(what, _WIDTH, initial_indent="    ", subsequent_indent="    ")
            self.app.stdout.write(f"{usage.format_help().strip()}\n{text}\n")
