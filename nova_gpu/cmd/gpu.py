# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu``: what a host has, asked on the host.

It reads nova-compute's configuration and the host. ``host prepare`` and ``verify`` change nothing
before they are told to, ``quarantine release`` does what it says.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from nova import config as nova_config
from nova import exception as nova_exception
from oslo_config import cfg
from oslo_log import log as logging

from nova_gpu.cmd import (
    arguments,
    card,
    cards,
    host_check,
    host_prepare,
    quarantine,
    record,
    topology,
)
from nova_gpu.cmd.formats import Format, print_json
from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.virt.inventory import survey

_COMMAND = cfg.SubCommandOpt(
    "command", title="Commands", help="What to do", handler=arguments.add_commands
)


def _list(looked: survey.Survey, command: Any) -> int:
    found = [cards.describe(each.gpu, each.reason, each.parts) for each in cards.read(looked)]
    if command.format == Format.JSON:
        print_json(found)
    else:
        print(cards.table(found) if found else cards.NONE)
    return 0


def _run(command: Any) -> int:
    """:param command: ``CONF.command``"""
    looked, as_json = survey.Survey, getattr(command, "format", None) == Format.JSON
    match command.name, getattr(command, "verb", None):
        case "host", "prepare":
            root = pathlib.Path(command.root)
            if command.undo:
                return host_prepare.undo(root)
            return host_prepare.main(looked(), root, apply=command.apply)
        case "host", _:
            return host_check.main(looked(), pathlib.Path("/"), as_json=as_json)
        case "quarantine", _:
            return quarantine.main(looked().quarantine, command)
        case "show", _:
            return card.main(looked(), command.address, as_json=as_json)
        case "topology", _:
            return topology.main(looked(), as_json=as_json)
        case "record", _:
            return record.main(looked())
        case "exporter", _:
            # Only now: no other command has use for the library.
            from nova_gpu.cmd import exporter

            return exporter.main(looked(), command.listen, once=command.once)
        case "verify", _:
            # Half of Nova, for which the other commands need not wait.
            from nova_gpu.cmd import verify

            return verify.main(looked(), as_json=as_json, mend=command.repair)
    return _list(looked(), command)


def main(argv: Sequence[str] | None = None) -> int:
    """:returns: the exit status: 0, 1 where the host or the options cannot be read or the command
    says so, 2 for a command line that cannot be understood, 3 as :mod:`nova_gpu.cmd.verify` says
    """
    CONF.register_cli_opt(_COMMAND)
    line = list(sys.argv if argv is None else argv)
    nova_config.parse_args(line, prog="nova-gpu", configure_db=False, init_rpc=False)
    CONF.set_default("use_stderr", True)
    logging.setup(CONF, "nova-gpu")
    if CONF.command.name is None:
        CONF.print_help()
        return 2
    try:
        return _run(CONF.command)
    except (exception.GPUError, nova_exception.NovaException, OSError, ValueError) as error:
        print(f"nova-gpu: {error}", file=sys.stderr)
        return 1
