# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu``: what a host has, asked on the host.

It reads nova-compute's configuration and the host. ``host prepare`` and ``verify`` change nothing
before they are told to, ``quarantine release`` does what it says.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import prettytable
from nova import config as nova_config
from nova import exception as nova_exception
from oslo_config import cfg
from oslo_log import log as logging

from nova_gpu.cmd import host_check, host_prepare, quarantine
from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.model import GPU
from nova_gpu.host import quarantine as quarantine_files
from nova_gpu.virt import health, survey, unbound

_UNKNOWN = "unknown"
_COLUMNS = (
    ("Address", "address"),
    ("Product", "product_id"),
    ("Name", "name"),
    ("Architecture", "architecture"),
    ("Memory MiB", "memory_mib"),
    ("NUMA", "numa_node"),
    ("IOMMU group", "iommu_group"),
    ("Driver", "driver"),
    ("Offered", "offered"),
)


def _commands(subparsers: Any) -> None:
    listing = subparsers.add_parser(
        "list", help="list this host's GPUs, whether each is offered to instances, and why not"
    )
    listing.add_argument(
        "--json", action="store_true", help="print one JSON array instead of a table"
    )
    check = subparsers.add_parser(
        "verify",
        help="compare what sysfs, libvirt, Nova's database and Placement say of this host's GPUs; "
        "exits 1 where they differ, 3 where one of them does not answer",
    )
    check.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    check.add_argument(
        "--repair", action="store_true", help="have Placement count what instances have"
    )
    host = subparsers.add_parser("host", help="see and change how this host stands to KVM guests")
    _host_commands(host.add_subparsers(dest="verb", required=True))
    kept = subparsers.add_parser(
        "quarantine", help="see and release the cards that no new instance is given"
    )
    quarantine.add_commands(kept.add_subparsers(dest="verb", required=True))


def _host_commands(subparsers: Any) -> None:
    check = subparsers.add_parser(
        "check",
        help="say card by card what stands between it and a guest; exits 1 if anything does",
    )
    check.add_argument("--json", action="store_true", help="print one JSON array instead of text")
    prepare = subparsers.add_parser(
        "prepare", help="print the files that have the cards with vfio-pci from boot on"
    )
    what = prepare.add_mutually_exclusive_group()
    what.add_argument("--apply", action="store_true", help="write them")
    what.add_argument("--undo", action="store_true", help="have all as it was before --apply")
    prepare.add_argument(
        "--root", default="/", metavar="DIR", help="write below this folder instead of /"
    )


_COMMAND = cfg.SubCommandOpt("command", title="Commands", help="What to do", handler=_commands)


def describe(gpu: GPU, obstacle: str | None) -> dict[str, Any]:
    """One card as plain values; what is not known is ``None``."""
    return {
        "address": str(gpu.address),
        "product_id": gpu.product.key,
        "name": gpu.product.name,
        "architecture": gpu.product.architecture,
        "memory_mib": gpu.product.memory_mib,
        "numa_node": gpu.numa_node,
        "iommu_group": gpu.iommu_group,
        "driver": gpu.driver,
        "companions": [str(address) for address in gpu.companions],
        "links": [
            {"peer": str(link.peer), "type": str(link.type), "width": link.width}
            for link in gpu.links
        ],
        "offered": obstacle is None,
        "reason": obstacle,
    }


def table(cards: Sequence[dict[str, Any]]) -> str:
    """The cards for people: what is not known is said so, and why a card is not offered, below."""
    shown = prettytable.PrettyTable([title for title, _ in _COLUMNS], align="l")
    for card in cards:
        shown.add_row([_cell(key, card[key]) for _, key in _COLUMNS])
    lines = [shown.get_string()]
    lines += [f"{card['address']}: {card['reason']}" for card in cards if card["reason"]]
    if any(card["architecture"] is None for card in cards):
        lines.append(
            "A GPU of unknown architecture satisfies no gpu_arch; [gpu]product says what it is."
        )
    return "\n".join(lines)


def _cell(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key in ("driver", "numa_node", "iommu_group") and value is None:
        return "-"
    return _UNKNOWN if value is None else str(value)


def _list(looked: survey.Survey, *, as_json: bool) -> int:
    found = looked.find()
    ailments = health.Watch(looked.roots, looked.mode).look(found)
    waiting = unbound.reasons(looked.unbound, found)
    quarantined = quarantine_files.reasons(looked.quarantine, found)
    kept = {**waiting, **ailments.kept_back, **ailments.ill, **quarantined}
    cards = [
        describe(gpu, kept.get(gpu.address) or host_check.obstacle(looked, gpu)) for gpu in found
    ]
    if as_json:
        print(json.dumps(cards, indent=2))
    elif cards:
        print(table(cards))
    else:
        print("No GPU was found on this host, or [gpu] options leave all of them out.")
    return 0


def _run(command: Any) -> int:
    """:param command: ``CONF.command``"""
    if command.name == "host" and command.verb == "prepare":
        root = pathlib.Path(command.root)
        if command.undo:
            return host_prepare.undo(root)
        return host_prepare.main(survey.Survey(), root, apply=command.apply)
    if command.name == "quarantine":
        return quarantine.main(survey.Survey().quarantine, command)
    if command.name == "host":
        return host_check.main(survey.Survey(), pathlib.Path("/"), as_json=command.json)
    if command.name == "verify":
        # Half of Nova, for which the other commands need not wait.
        from nova_gpu.cmd import verify

        return verify.main(survey.Survey(), as_json=command.json, mend=command.repair)
    return _list(survey.Survey(), as_json=command.json)


def main(argv: Sequence[str] | None = None) -> int:
    """:returns: the exit status: 0, 1 where the host or the options cannot be read or the command
    says so, 2 for a command line that cannot be understood, 3 as :mod:`nova_gpu.cmd.verify` says
    """
    CONF.register_cli_opt(_COMMAND)
    arguments = list(sys.argv if argv is None else argv)
    nova_config.parse_args(arguments, prog="nova-gpu", configure_db=False, init_rpc=False)
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
